//! `GET /openapi.json`. A test checks that the document and the routes agree.

use crate::dialects::ApiResponse;

const DOCUMENT: &str = include_str!("openapi.json");

pub(super) fn answer() -> ApiResponse {
    let body = DOCUMENT.replace("{{version}}", env!("CARGO_PKG_VERSION"));
    ApiResponse::text("application/json", body)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        fleet::{Config, Fleet},
        http::{Keyring, Settings, routes, state::AppState},
        requests::{Chats, ImageLimits},
    };
    use std::{collections::BTreeSet, sync::Arc};

    #[tokio::test]
    async fn every_route_is_in_the_document_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let mut config = Config::new(&[], home.path());
        config.plugins.folders.clear();
        let fleet = Arc::new(Fleet::start(config).await.unwrap());
        let (chats, keyring) = (Arc::new(Chats::new(fleet, ImageLimits::default())), Arc::new(Keyring::default()));
        let app = AppState::new(chats, &Settings::default(), keyring);
        let router = routes::router(&app);
        let served: BTreeSet<_> =
            router.methods().map(|(pattern, method)| (pattern.to_owned(), method.as_str().to_lowercase())).collect();
        let document: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut documented = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let has_answer = ["200", "101", "302"].iter().any(|status| operation["responses"][status].is_object());
                assert!(has_answer, "{method} {path} lacks an answer");
                documented.insert((path.clone(), method.clone()));
            }
        }
        assert_eq!(served, documented);
    }
}
