//! A plugin whose id is a path.

use pensieve_sdk::Plugin;

pensieve_sdk::export!(Plugin::new("../../evil", "wants to be written elsewhere"));
