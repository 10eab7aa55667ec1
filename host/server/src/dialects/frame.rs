//! A piece of an answer for the connection: a list of byte buffers, some of which may be shared.

use bytes::Bytes;

/// Buffers in order, none of them empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame(Vec<Bytes>);

impl Frame {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub(crate) fn push(&mut self, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            self.0.push(bytes);
        }
    }

    pub(crate) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Joins all buffers; copies unless there is only one.
    pub(crate) fn concat(mut self) -> Bytes {
        match self.0.as_mut_slice() {
            [] => Bytes::new(),
            [whole] => std::mem::take(whole),
            pieces => pieces.concat().into(),
        }
    }
}

impl<T: Into<Bytes>> From<T> for Frame {
    fn from(bytes: T) -> Self {
        let mut frame = Self::default();
        frame.push(bytes);
        frame
    }
}

impl IntoIterator for Frame {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
