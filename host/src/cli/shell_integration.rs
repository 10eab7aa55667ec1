//! `pensieve completions` and `pensieve man`, generated from the definition of the command line.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::{
    Arguments,
    error::{CliError, CliResult, Exit},
};

/// Print a completion script for a shell.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve completions bash > ~/.local/share/bash-completion/completions/pensieve
  pensieve completions zsh > ~/.zfunc/_pensieve
  pensieve completions fish > ~/.config/fish/completions/pensieve.fish")]
pub(super) struct Completions {
    /// bash, elvish, fish, powershell or zsh.
    #[arg(value_name = "SHELL", value_parser = shell)]
    shell: Shell,
}

/// Print the manual page of this program or of a subcommand.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve man | man -l -
  pensieve man serve > ~/.local/share/man/man1/pensieve-serve.1")]
pub(super) struct Man {
    /// The subcommand.
    verb: Option<String>,
}

impl Completions {
    pub(super) fn run(self) -> CliResult {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "pensieve", &mut script);
        super::terminal::print_exact(&String::from_utf8_lossy(&script))
    }
}

impl Man {
    pub(super) fn run(self) -> CliResult {
        let mut command = Arguments::command();
        // Subcommands get the global flags only when the command is built.
        command.build();
        if let Some(verb) = &self.verb {
            let subcommand = command.get_subcommands().find(|known| known.get_name() == verb && !known.is_hide_set());
            let Some(subcommand) = subcommand.cloned() else {
                return Err(CliError::new(
                    Exit::Usage,
                    format!("there is no subcommand '{verb}'; pensieve --help lists them"),
                ));
            };
            command = subcommand;
        }
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|error| CliError::system("the page", &error))?;
        super::terminal::print_exact(&String::from_utf8_lossy(&page))
    }
}

fn shell(text: &str) -> Result<Shell, String> {
    Shell::from_str(text, true).map_err(|_| "it has to be one of bash, elvish, fish, powershell and zsh".into())
}

/// Quotes a text as one word for a shell.
pub(super) fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_words_for_a_shell() {
        for (text, expect) in [
            ("src/my-model", "src/my-model"),
            ("my models/new", "'my models/new'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(word(text), expect);
        }
    }
}
