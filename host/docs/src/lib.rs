//! The documentation of this version as a site that needs no network: the README and the pages of `docs` in HTML, and their
//! sections as data, in which a script in the reader's browser searches.
//!
//! All links are relative, so the same files work below any address and out of a folder. Script and styles are files of
//! their own, since the server's policy forbids what is inline.

mod links;
mod pages;
mod render;
mod site;

pub use pages::{PAGES, Page};
pub use site::{File, START, find, site};
