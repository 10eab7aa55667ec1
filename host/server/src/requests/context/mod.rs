//! Edits of conversations that have grown long, before they are rendered: clears what a client no longer needs, leaves out
//! the oldest turns, and says when a summary is due. One planner ([`plan`]) decides for all APIs where to cut.

mod plan;
mod sizes;

use std::collections::HashSet;

use serde_json::{Value, json};

use self::{
    plan::{Clearing, Limits, Plan, plan},
    sizes::Measured,
};
use super::{Chats, Prepared};
use crate::{
    chat::{
        AppliedEdit, ClearTrigger, ClearedInputs, Compaction, ContextEdit, Conversation, Input, Part, Request,
        ToolClearing,
    },
    rendering::Depth,
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::Piece,
};

/// Stands for the result of a call that was cleared.
const CLEARED: &str = "[cleared to save room; call the tool again if needed]";
/// A conversation is edited at the latest when it takes all but this share (1/N) of the context, whatever its trigger.
const ROOM_SHARE: u32 = 8;
/// Sizes are measured turn by turn, without what the template adds. Each retry plans for this share (7/8) less.
const RETRY_SHARE: u32 = 8;
const RETRIES_MAX: u32 = 4;

/// A request whose conversation was edited as it asks for, except that no summary has been made.
#[derive(Clone, Debug)]
pub struct Fitted {
    pub request: Request,
    pub applied: Vec<AppliedEdit>,
    /// The summary that is due; its trigger is what the conversation should be well below afterwards.
    pub compaction: Option<Compaction>,
}

impl Chats {
    /// Edits a conversation as its request asks for, without a summary, and prepares the result.
    pub async fn prepare_fitting(&self, mut request: Request) -> Result<(Prepared, Vec<AppliedEdit>), Failure> {
        let mut retry = 0;
        loop {
            let truncates = request.context.contains(&ContextEdit::Truncate);
            let again = (truncates && retry < RETRIES_MAX).then(|| request.clone());
            let fitted = self.fit(request, retry).await?;
            match (self.prepare(fitted.request).await, again) {
                (Err(failure), Some(again)) if failure.code == FailureCode::TooLong => {
                    retry += 1;
                    request = again;
                }
                (prepared, _) => return prepared.map(|prepared| (prepared, fitted.applied)),
            }
        }
    }

    /// Edits a conversation as its request asks for. Each retry leaves more room.
    pub async fn fit(&self, mut request: Request, retry: u32) -> Result<Fitted, Failure> {
        let edits = std::mem::take(&mut request.context);
        let Input::Chat(conversation) = &mut request.input else { return Ok(Fitted::unchanged(request)) };
        if edits.is_empty() {
            return Ok(Fitted::unchanged(request));
        }
        self.permit(&request.client, &request.model)?;
        if let Some(elsewhere) = self.fleet.elsewhere(&request.model)? {
            let context = self.upstreams.context(&elsewhere).await.unwrap_or(u32::MAX);
            // Nothing here can count an upstream's tokens.
            let lengths: Vec<u32> = sizes::texts(conversation).iter().map(|text| estimate(text)).collect();
            let lengths = sizes::with_images(conversation, &lengths, |_| 0);
            return Ok(fitted(request, &edits, &lengths, room(context, retry)));
        }
        let target = self.fleet.target(&request.model).await?;
        let convention = self.conventions.of(&target).await?;
        let texts =
            sizes::texts(conversation).into_iter().map(|text| Piece { plain: vec![(0, text.len())], text }).collect();
        let tokens = convention.renderer.texts(texts, request.client.salt.clone()).await?;
        let lengths: Vec<u32> = tokens.iter().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX)).collect();
        let shown = self.shown(&target, &request.client, &request.images, &request.input, Depth::Measured).await?;
        let Input::Chat(conversation) = &mut request.input else { return Ok(Fitted::unchanged(request)) };
        let lengths = sizes::with_images(conversation, &lengths, |item| shown.rows(item));
        Ok(fitted(request, &edits, &lengths, room(target.context, retry)))
    }
}

/// Tokens that a conversation may have; each retry leaves more room.
fn room(context: u32, retry: u32) -> u32 {
    (0..retry).fold(context - context / ROOM_SHARE, |room, _| room - room / RETRY_SHARE)
}

/// About how many tokens a text has.
fn estimate(text: &str) -> u32 {
    u32::try_from(text.len() / 4).unwrap_or(u32::MAX)
}

fn fitted(mut request: Request, edits: &[ContextEdit], lengths: &[u32], room: u32) -> Fitted {
    let Input::Chat(conversation) = &mut request.input else { return Fitted::unchanged(request) };
    let (applied, compaction) = edit(conversation, edits, lengths, room);
    Fitted { request, applied, compaction }
}

impl Fitted {
    fn unchanged(request: Request) -> Self {
        Self { request, applied: Vec::new(), compaction: None }
    }
}

/// Applies the edits to a conversation, given the lengths of its texts. `room` limits every trigger.
fn edit(
    conversation: &mut Conversation,
    edits: &[ContextEdit],
    lengths: &[u32],
    room: u32,
) -> (Vec<AppliedEdit>, Option<Compaction>) {
    let clearing =
        edits.iter().find_map(|edit| if let ContextEdit::ClearToolUses(it) = edit { Some(it) } else { None });
    let compaction = edits.iter().find_map(|edit| if let ContextEdit::Compact(it) = edit { Some(it) } else { None });
    let thinking =
        edits.iter().find_map(|edit| if let ContextEdit::ClearThinking { keep } = edit { Some(*keep) } else { None });
    // A summary has to be made of everything.
    let truncates = compaction.is_none() && edits.contains(&ContextEdit::Truncate);
    let measured = sizes::measure(conversation, lengths, clearing);
    let limits = Limits { clearing: clearing.map(|it| limits_of(it, room)), truncation: truncates.then_some(room) };
    let planned = plan(&measured.sizes, &limits);
    let mut applied = Vec::new();
    if let Some(keep) = thinking {
        applied.extend(clear_thinking(conversation, &measured, keep));
    }
    if let Some(clearing) = clearing {
        applied.extend(clear_uses(conversation, &measured, clearing, &planned));
    }
    applied.extend(truncate(conversation, &measured, &planned));
    let due = compaction.and_then(|it| {
        let trigger = it.trigger.unwrap_or(room).min(room);
        let goal = if trigger == 0 { room } else { trigger };
        (planned.tokens > u64::from(trigger)).then(|| Compaction { trigger: Some(goal), ..it.clone() })
    });
    (applied, due)
}

fn limits_of(clearing: &ToolClearing, room: u32) -> Clearing {
    let (tokens, uses) = match clearing.trigger {
        ClearTrigger::InputTokens(tokens) => (tokens.min(room), None),
        // Beyond the room they are cleared in any case.
        ClearTrigger::ToolUses(uses) => (room, Some(uses)),
    };
    Clearing { tokens: Some(tokens), uses, keep: clearing.keep as usize, at_least: clearing.at_least }
}

/// Leaves out the reasoning of all but the latest `keep` runs that have some. A run is what follows a message of the user.
fn clear_thinking(conversation: &mut Conversation, measured: &Measured, keep: u32) -> Option<AppliedEdit> {
    let runs = measured.runs();
    let is_thought = |part: &Part| matches!(part, Part::Thinking(_));
    let mut with: Vec<usize> = conversation
        .turns
        .iter()
        .zip(&runs)
        .filter(|(turn, _)| turn.parts.iter().any(is_thought))
        .map(|(_, run)| *run)
        .collect();
    with.dedup();
    let gone: HashSet<usize> = with[..with.len().saturating_sub(keep as usize)].iter().copied().collect();
    let mut tokens = 0;
    for (place, turn) in conversation.turns.iter_mut().enumerate().filter(|(place, _)| gone.contains(&runs[*place])) {
        turn.parts.retain(|part| !is_thought(part));
        tokens += measured.sizes.turns[place].thoughts;
    }
    let turns = u32::try_from(gone.len()).unwrap_or(u32::MAX);
    (turns > 0).then_some(AppliedEdit::ClearedThinking { turns, tokens })
}

fn clear_uses(
    conversation: &mut Conversation,
    measured: &Measured,
    clearing: &ToolClearing,
    planned: &Plan,
) -> Option<AppliedEdit> {
    let (mut uses, mut tokens) = (0, 0);
    for place in &measured.uses[..planned.cleared] {
        let Some(saves) = place.saves.filter(|saves| *saves > 0) else { continue };
        let (turn, part) = place.result;
        if let Part::ToolResult { text, images, .. } = &mut conversation.turns[turn].parts[part] {
            CLEARED.clone_into(text);
            images.clear();
        }
        if let Some((turn, part)) = place.call
            && let Part::ToolCall { name, arguments, .. } = &mut conversation.turns[turn].parts[part]
            && clearing.inputs.clears(name)
        {
            *arguments = json!({});
        }
        (uses, tokens) = (uses + 1, tokens + saves);
    }
    (uses > 0).then_some(AppliedEdit::ClearedToolUses { uses, tokens })
}

fn truncate(conversation: &mut Conversation, measured: &Measured, planned: &Plan) -> Option<AppliedEdit> {
    let lead = plan::lead(&measured.sizes);
    let (mut turns, mut tokens, mut place) = (0, 0, 0);
    conversation.turns.retain(|_| {
        let at = place;
        place += 1;
        let stays = at < lead || at >= planned.first || planned.question == Some(at);
        if !stays {
            turns += 1;
            tokens += measured.sizes.turns[at].tokens;
        }
        stays
    });
    (turns > 0).then_some(AppliedEdit::Truncated { turns, tokens })
}

impl ClearedInputs {
    fn clears(&self, tool: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Of(tools) => tools.iter().any(|name| name == tool),
        }
    }
}

/// The text whose length stands for a value's.
fn text_of(name: &str, arguments: &Value) -> String {
    format!("{name} {arguments}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
