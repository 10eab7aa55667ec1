//! A piece of an answer as it is written: bytes, some of which several pieces or answers may share.

use bytes::Bytes;

/// Bytes in order, none of them empty.
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

    /// All of it in one piece: a copy, if it is not in one already.
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
