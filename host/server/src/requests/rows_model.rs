//! The model that makes rows for a request. Vectors of another model than the one that a client names are worthless to it, so
//! that no default model answers: for an unknown name only the one model that was made for such rows does.

use super::Chats;
use crate::chat::Client;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    rows::Kind,
};

/// A model, and what the client has to be told of the choice.
pub(crate) type Chosen = (String, Option<String>);

impl Chats {
    /// The model that makes rows of `kind` for a client: the one of this name; if there is none, or the name is empty, the only
    /// one that was made for such rows. A request without a name gets the only model, whatever it was made for.
    pub(crate) async fn rows_model(&self, client: &Client, name: &str, kind: Kind) -> Result<Chosen, Failure> {
        if self.fleet.find_listed(name).is_some() {
            return Ok((name.to_owned(), None));
        }
        let models = self.fleet.models().into_iter().map(|model| model.id);
        let models: Vec<String> = models.filter(|id| self.permit(client, id).is_ok()).collect();
        let mut made = Vec::new();
        for id in &models {
            // What is wrong with a model is said to those who name it.
            if let Ok(Some(rows)) = self.rows_use(id).await
                && (rows.made_for, rows.kind) == (true, kind)
            {
                made.push(id.clone());
            }
        }
        chosen(name, kind, &models, &made)
    }
}

/// The choice for a name that no model has, among `models`, of which `made` were made for `kind`.
fn chosen(name: &str, kind: Kind, models: &[String], made: &[String]) -> Result<Chosen, Failure> {
    let (does, is_named) = (kind.does(), !name.is_empty());
    let unknown = format!("there is no model '{}'", Outside::new(name).at_most(80));
    let only = match (made, models) {
        ([only], _) => only,
        ([], [only]) if !is_named => only,
        _ => {
            let why = match made {
                [] if models.is_empty() => format!("no model that {does} is served"),
                [] => format!("no model that {does} is served; there are: {}", models.join(", ")),
                several => format!("several models that {} are served: {}", kind.do_it(), several.join(", ")),
            };
            let (code, message) = match is_named {
                true => (FailureCode::NotFound, format!("{unknown}, and {why}")),
                false => (FailureCode::Invalid, why),
            };
            return Err(Failure::new(code, message).at("model").with_help("name one of them"));
        }
    };
    let told = is_named.then(|| format!("model: {unknown}; '{only}' answers, the only one that {does}"));
    Ok((only.clone(), told))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(name: &str, made: &[&str], expect: Result<(&str, Option<&str>), (FailureCode, &str)>) {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = chosen(name, Kind::Rank, &names(&["chat", "rank", "other"]), &names(made));
        let found = found.as_ref().map(|(only, told)| (only.as_str(), told.as_deref()));
        assert_eq!(found.map_err(|failure| (failure.code, failure.message.as_str())), expect, "{name} {made:?}");
    }

    #[test]
    fn only_one_that_was_made_for_it_answers_for_an_unknown_name() {
        let told = "model: there is no model 'gpt'; 'rank' answers, the only one that ranks documents";
        let none = "no model that ranks documents is served; there are: chat, rank, other";
        let several = "several models that rank documents are served: rank, other";
        let unknown = |why: &str| format!("there is no model 'gpt', and {why}");
        check("", &["rank"], Ok(("rank", None)));
        check("gpt", &["rank"], Ok(("rank", Some(told))));
        check("", &[], Err((FailureCode::Invalid, none)));
        check("gpt", &[], Err((FailureCode::NotFound, &unknown(none))));
        check("", &["rank", "other"], Err((FailureCode::Invalid, several)));
        check("gpt", &["rank", "other"], Err((FailureCode::NotFound, &unknown(several))));
    }

    #[test]
    fn the_only_model_answers_where_none_is_named() {
        let only = ["chat".to_owned()];
        assert_eq!(chosen("", Kind::Embed, &only, &[]).unwrap(), ("chat".to_owned(), None));
        assert_eq!(chosen("gpt", Kind::Embed, &only, &[]).unwrap_err().code, FailureCode::NotFound);
        assert!(chosen("", Kind::Embed, &[], &[]).is_err());
    }
}
