//! Templates against the texts that transformers renders, and what hostile ones may not do.
