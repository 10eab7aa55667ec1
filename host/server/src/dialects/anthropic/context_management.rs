//! `context_management`: edits of a conversation that has grown long, and what is told of those that were applied.
//!
//! Clients ask for them under beta headers, which are not needed here. Triggers are capped at what the model's context allows.

use serde_json::{Value, json};

use crate::{
    chat::{AppliedEdit, ClearTrigger, ClearedInputs, Compaction, ContextEdit, ToolClearing},
    dialects::{
        ApiError,
        fields::{Field, Quote},
    },
};

const FIELD: &str = "context_management";
const CLEAR_TOOL_USES: &str = "clear_tool_uses_20250919";
const CLEAR_THINKING: &str = "clear_thinking_20251015";
const COMPACT: &str = "compact_20260112";

const EDITS_MAX: usize = 16;
const TOOLS_MAX: usize = 512;
const NAME_LEN_MAX: usize = 256;

/// Defaults of the original.
const TRIGGER_TOKENS: u32 = 100_000;
const COMPACT_TOKENS: u32 = 150_000;
const KEEP_USES: u32 = 3;
const KEEP_THINKING: u32 = 1;

/// The edits of a request; `None` if it has no such field.
pub(super) fn read(body: &Field<'_>) -> Result<Option<Vec<ContextEdit>>, ApiError> {
    let field = body.get(FIELD);
    let on_demand = on_demand(body)?;
    let Some(management) = field.present() else { return Ok(on_demand.map(|edit| vec![edit])) };
    if on_demand.is_some() {
        return Err(field.invalid("cannot be combined with 'compaction'"));
    }
    management.object()?;
    let edits = management.get("edits");
    let mut read = Vec::new();
    let mut kinds = Vec::new();
    if let Some(edits) = edits.present() {
        for edit in edits.items(EDITS_MAX)? {
            edit.object()?;
            let kind = edit.get("type").string()?;
            if kinds.contains(&kind) {
                return Err(edit.invalid(format_args!("'{}' is there twice", Quote(kind))));
            }
            kinds.push(kind);
            read.extend(self::edit(&edit, kind)?);
        }
    }
    Ok(Some(read))
}

/// `compaction`: a summary now, and nothing else.
fn on_demand(body: &Field<'_>) -> Result<Option<ContextEdit>, ApiError> {
    let field = body.get("compaction");
    let Some(compaction) = field.present() else { return Ok(None) };
    compaction.object()?;
    compaction.get("type").choice(&["summarize"])?;
    Ok(Some(ContextEdit::Compact(Compaction::now(instructions(compaction)?))))
}

fn edit(edit: &Field<'_>, kind: &str) -> Result<Option<ContextEdit>, ApiError> {
    match kind {
        CLEAR_TOOL_USES => clear_tool_uses(edit).map(Some),
        CLEAR_THINKING => Ok(keep_thinking(&edit.get("keep"))?.map(|keep| ContextEdit::ClearThinking { keep })),
        COMPACT => {
            let trigger = edit.get("trigger").optional(|trigger| amount(trigger, "input_tokens", 1))?;
            Ok(Some(ContextEdit::Compact(Compaction {
                trigger: Some(trigger.unwrap_or(COMPACT_TOKENS)),
                pause: edit.get("pause_after_compaction").flag(false)?,
                instructions: instructions(edit)?,
            })))
        }
        _ => {
            let known = [CLEAR_TOOL_USES, CLEAR_THINKING, COMPACT].join("', '");
            Err(edit.get("type").invalid(format_args!("there is no edit '{}'; there are '{known}'", Quote(kind))))
        }
    }
}

fn clear_tool_uses(edit: &Field<'_>) -> Result<ContextEdit, ApiError> {
    let trigger = edit.get("trigger");
    let trigger = trigger.optional(|trigger| {
        trigger.object()?;
        let value = trigger.get("value").count(0)?;
        Ok(match trigger.get("type").choice(&["input_tokens", "tool_uses"])? {
            0 => ClearTrigger::InputTokens(value),
            _ => ClearTrigger::ToolUses(value),
        })
    })?;
    let inputs = edit.get("clear_tool_inputs");
    let inputs = inputs.optional(|inputs| {
        if inputs.json()?.is_array() {
            return inputs.texts(TOOLS_MAX, NAME_LEN_MAX).map(ClearedInputs::Of);
        }
        Ok(if inputs.boolean()? { ClearedInputs::All } else { ClearedInputs::None })
    })?;
    let exclude = edit.get("exclude_tools");
    Ok(ContextEdit::ClearToolUses(ToolClearing {
        trigger: trigger.unwrap_or(ClearTrigger::InputTokens(TRIGGER_TOKENS)),
        keep: edit.get("keep").optional(|keep| amount(keep, "tool_uses", 0))?.unwrap_or(KEEP_USES),
        at_least: edit.get("clear_at_least").optional(|least| amount(least, "input_tokens", 0))?,
        exclude: exclude.optional(|exclude| exclude.texts(TOOLS_MAX, NAME_LEN_MAX))?.unwrap_or_default(),
        inputs: inputs.unwrap_or_default(),
    }))
}

/// The number of turns that keep their reasoning; `None` for all.
fn keep_thinking(keep: &Field<'_>) -> Result<Option<u32>, ApiError> {
    if keep.is_absent() {
        return Ok(Some(KEEP_THINKING));
    }
    if keep.is_string() {
        return keep.choice(&["all"]).map(|_| None);
    }
    keep.object()?;
    match keep.get("type").choice(&["thinking_turns", "all"])? {
        0 => keep.get("value").count(1).map(Some),
        _ => Ok(None),
    }
}

/// An object of this type with a number.
fn amount(field: &Field<'_>, kind: &str, min: u32) -> Result<u32, ApiError> {
    field.object()?;
    field.get("type").choice(&[kind])?;
    field.get("value").count(min)
}

fn instructions(field: &Field<'_>) -> Result<Option<String>, ApiError> {
    field.get("instructions").optional(|text| text.string().map(str::to_owned))
}

/// `context_management` of an answer.
pub(super) fn json(applied: &[AppliedEdit]) -> Value {
    let edits = applied.iter().filter_map(|edit| match edit {
        AppliedEdit::ClearedThinking { turns, tokens } => {
            Some(json!({ "type": CLEAR_THINKING, "cleared_thinking_turns": turns, "cleared_input_tokens": tokens }))
        }
        AppliedEdit::ClearedToolUses { uses, tokens } => {
            Some(json!({ "type": CLEAR_TOOL_USES, "cleared_tool_uses": uses, "cleared_input_tokens": tokens }))
        }
        // Not part of this API.
        AppliedEdit::Truncated { .. } => None,
    });
    json!({ "applied_edits": edits.collect::<Vec<_>>() })
}
