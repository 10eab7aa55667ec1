//! A model's tokenizer together with its chat template.

use std::{sync::Arc, thread};

use pensieve_protocol::{
    card::Card,
    conversation::Conversation,
    job::{Failure, FailureCode},
    prompt::{ImageWords, Piece, PromptTokens, STACK_BYTES, Tokenizer},
    vocabulary::Vocabulary,
};

use crate::{template::Template, tokens::Tokens};

/// A model's tokenizer, and its template once that has been read.
#[derive(Debug)]
pub struct Model {
    tokens: Tokens,
    vocabulary: Arc<Vocabulary>,
    template: Option<Template>,
}

impl Model {
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, Failure> {
        // Ids beyond the vocabulary never occur.
        let eos: Vec<u32> = tokenizer.eos.iter().copied().filter(|token| *token < tokenizer.vocabulary).collect();
        let vocabulary = Vocabulary::new(&tokenizer.json, tokenizer.vocabulary, &eos).map_err(|error| {
            Failure::new(FailureCode::Unsupported, format!("this model's texts cannot be read: {error}"))
        })?;
        Ok(Self { tokens: Tokens::of(tokenizer)?, vocabulary: Arc::new(vocabulary), template: None })
    }

    /// Reads a card's tokenizer and template on a stack as deep as a prompt process's, and returns the first error.
    pub fn try_card(card: Card) -> Result<(), Failure> {
        let read = move || -> Result<(), Failure> {
            let mut model = Self::new(&Tokenizer::of(&card))?;
            let images = card.media().and_then(|media| media.image.as_ref()).map(ImageWords::of);
            model.read_template(card.chat_template.as_deref(), images).map(drop)
        };
        let failed = |what: &str| {
            let message = format!("reading the model's chat template and tokenizer failed: {what}");
            Failure::new(FailureCode::Unsupported, message)
        };
        let reading = thread::Builder::new().stack_size(STACK_BYTES).spawn(read);
        let reading = reading.map_err(|error| failed(&error.to_string()))?;
        reading.join().unwrap_or_else(|_| Err(failed("it panicked")))
    }

    /// The bytes of its tokens.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// Parses a chat template; returns true if the template renders tool definitions itself. `images` says how it writes
    /// images, if the model reads some.
    pub fn read_template(&mut self, source: Option<&str>, images: Option<ImageWords>) -> Result<bool, Failure> {
        if let Some(images) = &images {
            self.tokens.check_slot(images.slot)?;
        }
        let template = Template::of(source, self.tokens.specials(), images)?;
        Ok(self.template.insert(template).takes_tools())
    }

    /// Renders and tokenizes a conversation, up to where the model continues. Cached tokens are reused only under the
    /// same salt. `items` are the texts of the items that the turns show.
    pub fn conversation(
        &self,
        conversation: &Conversation,
        tools_in_words: Option<&str>,
        items: &[String],
        salt: &[u8],
    ) -> Result<PromptTokens, Failure> {
        let Some(template) = &self.template else {
            return Err(Failure::new(FailureCode::Internal, "a prompt process has no template yet"));
        };
        let rendered = template.render(conversation, tools_in_words, items)?;
        self.tokens.encode(&rendered, template.slot(), salt)
    }

    /// Tokenizes texts by themselves.
    pub fn texts(&self, texts: &[Piece], salt: &[u8]) -> Result<Vec<Vec<u32>>, Failure> {
        texts.iter().map(|piece| self.tokens.encode_piece(piece, salt)).collect()
    }

    pub fn text(&self, text: &str, salt: &[u8]) -> Result<Vec<u32>, Failure> {
        self.tokens.encode_text(text, salt)
    }
}
