//! The model that makes rows for a request. Vectors of another model than the one that a client names are worthless to it, so
//! that no default model answers: for an unknown name only the one model that was made for such rows does.

use super::Chats;
use crate::chat::Client;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    rows::Kind,
};

/// The model that makes rows for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowsModel {
    /// Its id, or another name of it.
    pub(crate) id: String,
    /// The warning that it is not the model that the client named.
    pub(crate) warning: Option<String>,
}

/// The models to choose from.
#[derive(Debug, Default)]
struct Choices {
    all: Vec<String>,
    /// Those that were made for such rows.
    made: Vec<String>,
    /// Others that give some, if a client names them.
    able: Vec<String>,
}

impl Chats {
    /// The model that makes rows of `kind` for a client: the one of this name; if there is none, or the name is empty, the only
    /// one that was made for such rows. A request without a name gets the only model, whatever it was made for.
    pub(crate) async fn rows_model(&self, client: &Client, name: &str, kind: Kind) -> Result<RowsModel, Failure> {
        if self.is_model(client, name)? {
            return Ok(RowsModel { id: name.to_owned(), warning: None });
        }
        let models = self.fleet.models().into_iter().map(|model| model.id);
        let mut choices =
            Choices { all: models.filter(|id| self.permit(client, id).is_ok()).collect(), ..Choices::default() };
        for id in &choices.all {
            // What is wrong with a model is said to those who name it.
            let Ok(Some(rows)) = self.rows_use(id).await else { continue };
            match (kind, rows.kind) {
                _ if rows.kind == kind && rows.made_for => choices.made.push(id.clone()),
                (Kind::Embed, Kind::Embed) => choices.able.push(id.clone()),
                (Kind::Rank, Kind::Embed) if rows.made_for => choices.able.push(id.clone()),
                _ => {}
            }
        }
        chosen(name, kind, &choices)
    }

    /// Whether a name is a model's; an error if only its adapter is unknown, or the client may not use it.
    pub(crate) fn is_model(&self, client: &Client, name: &str) -> Result<bool, Failure> {
        match self.fleet.is_named(name) {
            Ok(false) => Ok(false),
            named => self.permit(client, name).and(named),
        }
    }
}

/// The choice for a name that no model has.
fn chosen(name: &str, kind: Kind, choices: &Choices) -> Result<RowsModel, Failure> {
    let (verb, is_named) = (kind.verb(), !name.is_empty());
    let unknown = format!("there is no model '{}'", Outside::new(name).at_most(80));
    let only = match (&choices.made[..], &choices.all[..]) {
        ([only], _) => only,
        ([], [only]) if !is_named => only,
        (made, _) => {
            let none = format!("no model that {verb} is served");
            let (why, help) = match (made, &choices.able[..]) {
                ([], []) => (none, instead(kind)),
                ([], able) => (format!("{none}; these may be named instead: {}", able.join(", ")), "name one of them"),
                (several, _) => {
                    let verb = kind.plural_verb();
                    (format!("several models that {verb} are served: {}", several.join(", ")), "name one of them")
                }
            };
            let (code, message) = match is_named {
                true => (FailureCode::NotFound, format!("{unknown}, and {why}")),
                false => (FailureCode::Invalid, why),
            };
            return Err(Failure::new(code, message).at("model").with_help(help));
        }
    };
    let warning = is_named.then(|| format!("model: {unknown}; '{only}' answers, the only one that {verb}"));
    Ok(RowsModel { id: only.clone(), warning })
}

/// The advice where no model gives such rows.
fn instead(kind: Kind) -> &'static str {
    match kind {
        Kind::Embed => "serve a model for embeddings",
        Kind::Rank => "serve a reranker, or a model for embeddings",
        Kind::Classify => "serve a classifier",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn choices(all: &[&str], made: &[&str], able: &[&str]) -> Choices {
        let [all, made, able] = [all, made, able].map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        Choices { all, made, able }
    }

    fn check(name: &str, made: &[&str], expect: Result<(&str, Option<&str>), (FailureCode, &str)>) {
        let found = chosen(name, Kind::Rank, &choices(&["chat", "rank", "other"], made, &["other"]));
        let found = found.as_ref().map(|model| (model.id.as_str(), model.warning.as_deref()));
        assert_eq!(found.map_err(|failure| (failure.code, failure.message.as_str())), expect, "{name} {made:?}");
    }

    #[test]
    fn only_one_that_was_made_for_it_answers_for_an_unknown_name() {
        let warning = "model: there is no model 'gpt'; 'rank' answers, the only one that ranks documents";
        let none = "no model that ranks documents is served; these may be named instead: other";
        let several = "several models that rank documents are served: rank, other";
        let unknown = |why: &str| format!("there is no model 'gpt', and {why}");
        check("", &["rank"], Ok(("rank", None)));
        check("gpt", &["rank"], Ok(("rank", Some(warning))));
        check("", &[], Err((FailureCode::Invalid, none)));
        check("gpt", &[], Err((FailureCode::NotFound, &unknown(none))));
        check("", &["rank", "other"], Err((FailureCode::Invalid, several)));
        check("gpt", &["rank", "other"], Err((FailureCode::NotFound, &unknown(several))));
    }

    #[test]
    fn the_only_model_answers_where_none_is_named() {
        let only = choices(&["chat"], &[], &["chat"]);
        assert_eq!(chosen("", Kind::Embed, &only).unwrap(), RowsModel { id: "chat".to_owned(), warning: None });
        assert_eq!(chosen("gpt", Kind::Embed, &only).unwrap_err().code, FailureCode::NotFound);
        assert!(chosen("", Kind::Embed, &Choices::default()).is_err());
    }

    #[test]
    fn no_model_is_advised_that_cannot_do_it() {
        for (kind, help) in
            [(Kind::Rank, "serve a reranker, or a model for embeddings"), (Kind::Classify, "serve a classifier")]
        {
            let failure = chosen("gpt", kind, &choices(&["chat", "words"], &[], &[])).unwrap_err();
            assert!(failure.message.ends_with("is served") && failure.help == help, "{failure}");
        }
    }
}
