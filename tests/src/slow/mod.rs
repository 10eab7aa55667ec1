//! The suites that take longest: whole clients, all plugins of authors, hours of faults in a minute. They
//! count as much as all others; `-- --skip slow::` leaves them out while you work on something else.

mod authors;
mod boundaries;
mod chaos;
mod claude_code;
mod clients;
mod codex;
mod gemini_cli;
mod installer;
mod kubernetes;
mod opencode;
mod page;
mod pictures;
mod publishing;
mod sessions;
mod siege;
mod tool_search;
mod toolchains;
mod transformers;
mod upstreams;
