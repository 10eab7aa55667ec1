//! The laws that every model must obey, as code.
