//! Taking the longest token at each place of a text, as RWKV's vocabulary wants.
//!
//! Such a tokenizer is a WordPiece whose continuations have no prefix and whose word is the whole text. The `tokenizers`
//! crate looks for each token from the end of the word, which takes a time quadratic in its length.

use tokenizers::{Model, ModelWrapper, Token, Tokenizer};

/// The tokens, sorted by their text.
pub(super) struct Longest(Vec<(String, u32)>);

impl Longest {
    /// `None` for all other tokenizers.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::WordPiece(model) = tokenizer.get_model() else { return None };
        if !model.continuing_subword_prefix.is_empty() {
            return None;
        }
        let mut tokens: Vec<_> = model.get_vocab().into_iter().filter(|(text, _)| !text.is_empty()).collect();
        tokens.sort();
        Some(Self(tokens))
    }

    /// `None` if some part of the text begins with no token.
    pub fn tokenize(&self, text: &str) -> Option<Vec<Token>> {
        let (mut tokens, mut done) = (Vec::new(), 0);
        while done < text.len() {
            let (token, id) = self.first_of(&text[done..])?;
            tokens.push(Token::new(*id, token.clone(), (done, done + token.len())));
            done += token.len();
        }
        Some(tokens)
    }

    /// The longest token that the text begins with.
    fn first_of(&self, text: &str) -> Option<&(String, u32)> {
        let (mut tokens, mut longest) = (&self.0[..], None);
        for (depth, byte) in text.bytes().enumerate() {
            // Those that have the text so far in common; the shortest comes first.
            let at = |token: &(String, u32)| token.0.as_bytes().get(depth).copied();
            let start = tokens.partition_point(|token| at(token) < Some(byte));
            let end = tokens.partition_point(|token| at(token) <= Some(byte));
            tokens = &tokens[start..end];
            match tokens.first() {
                None => break,
                Some(token) if token.0.len() == depth + 1 => longest = Some(token),
                Some(_) => {}
            }
        }
        longest
    }
}
