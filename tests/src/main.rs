//! The integration tests: one binary, so that it links once. A plugin that a test needs is built by the first test that
//! requests it, so `cargo test --workspace` on a fresh clone is the whole command.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "what a test writes down is handed over")]

mod agents;
mod artifacts;
mod checkpoints;
mod driver;
mod encoders;
mod hub;
mod images;
mod infill;
mod processes;
mod random;
mod reference;
mod worker;

mod adapters;
mod anthropic;
mod attaching;
mod bad_models;
mod batches;
mod bombs;
mod budgets;
mod caches;
mod chats;
mod cli;
mod conformance;
mod context;
mod daily;
mod damage;
mod deaths;
mod descriptors;
mod docs;
mod dropped;
mod extensions;
mod families;
mod fatal_pictures;
mod fence;
mod fleet;
mod grammars;
mod http;
mod items;
mod links;
mod llama;
mod loading;
mod lora;
mod memory;
mod misses;
mod mistral;
mod newcomer;
mod openai;
mod overhead;
mod packages;
mod page;
mod panics;
mod phi;
mod programs;
mod prompts;
mod qwen2;
mod ranks;
mod responses;
mod reuse;
mod rows;
mod samplers;
mod scripted;
mod seeing;
mod services;
mod serving;
mod slow;
mod speed;
mod spread;
mod starter;
mod streams;
mod vision;
mod zoo;
