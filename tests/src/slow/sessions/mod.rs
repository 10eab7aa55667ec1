//! Long sessions of the real clients against the real program, without a network: more than thirty turns with tools, a
//! subagent, an image, an interruption, a resumed session and compaction, by hand and at an overflow. No turn may fail, and
//! what has been sent before is found in the cache, or the log says why not.

mod claude_code;
mod codex;
mod gemini_cli;
mod opencode;
