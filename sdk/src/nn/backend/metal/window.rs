//! Whole pages around a range of memory, as Metal wants them for a buffer over memory that is there already.

/// A page on Apple silicon.
const PAGE_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

impl Window {
    /// The pages of the `bytes` at this address.
    pub(super) fn around(address: usize, bytes: usize) -> Self {
        let start = address - address % PAGE_BYTES;
        Self { start, bytes: (address + bytes - start).next_multiple_of(PAGE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_whole_pages_and_no_more_than_it_needs() {
        let page = PAGE_BYTES;
        for (address, bytes, expect) in [
            (page, page, (page, page)),
            (page + 32, 64, (page, page)),
            (2 * page - 1, 2, (page, 2 * page)),
            (page + 32, 2 * page, (page, 3 * page)),
        ] {
            assert_eq!(Window::around(address, bytes), Window { start: expect.0, bytes: expect.1 });
        }
    }
}
