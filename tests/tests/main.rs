//! The real binaries, as users and machines treat them, and the rules of the house. One program: two tests run at a time from the first to the last, and
//! what they share is compiled once.

mod anywhere;
mod cli;
mod concept;
mod crash;
mod data_cli;
mod detector;
mod export;
mod llm_cli;
mod llm_crash;
mod plan;
mod precision;
mod pretrain;
mod ranks;
mod settings;
mod settings_page;
mod shards;
mod signals;
mod software_devices;
mod supervise;
mod support;
mod switcher;
mod thermal;
mod tidy;
mod unwritten;
