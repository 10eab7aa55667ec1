//! When a model hands requests over to another one, usually one that lives elsewhere: its prompt is too long, its queue is too
//! deep, it is not loaded and others need the memory, or it is the time of day for it. Never without a rule in the configuration.

use std::fmt;

use super::{Fleet, FleetStats, ModelState, ModelStats};
use pensieve_protocol::job::Failure;

/// A model's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The id of the model that takes over.
    pub to: String,
    /// Prompts that do not fit are handed over.
    pub too_long: bool,
    /// Requests that run or wait from which on further ones are handed over; `None` for never.
    pub streams: Option<u64>,
    /// Requests are handed over while it is not loaded and models with running answers leave too little memory for it.
    pub memory: bool,
    /// Requests are handed over at this time of day.
    pub hours: Option<Hours>,
}

impl Handover {
    /// Tells the operator when requests go to another model: completes "the model …".
    pub fn told(&self) -> String {
        let mut reasons = Vec::new();
        if let Some(hours) = self.hours {
            reasons.push(format!("from {hours}"));
        }
        if self.too_long {
            reasons.push("if a prompt does not fit".to_owned());
        }
        if let Some(streams) = self.streams {
            reasons.push(format!("if {streams} requests run or wait"));
        }
        if self.memory {
            reasons.push("if it is not loaded and memory is short".to_owned());
        }
        if reasons.is_empty() {
            reasons.push("never, as all its rules are off".to_owned());
        }
        format!("hands over to '{}' {}", self.to, reasons.join(", "))
    }
}

/// A time of day, in minutes after midnight by the local clock; it may go over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u16,
    to: u16,
}

impl Hours {
    /// `22:00-07:00`. The error completes "'hours' …".
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("is \"{}\", and it takes two times, such as 22:00-07:00", text.escape_debug());
        let (from, to) = text.split_once('-').ok_or_else(form)?;
        let minute = |text: &str| {
            let (hour, minute) = text.trim().split_once(':')?;
            let number = |text: &str, most: u16| {
                let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u16>().ok().filter(|number| is_plain && *number <= most)
            };
            Some(number(hour, 23)? * 60 + number(minute, 59)?)
        };
        let hours = Self { from: minute(from).ok_or_else(form)?, to: minute(to).ok_or_else(form)? };
        if hours.from == hours.to {
            return Err("begins and ends at the same time".into());
        }
        Ok(hours)
    }

    /// True for this minute of the day.
    pub fn within(self, minute: u16) -> bool {
        let Self { from, to } = self;
        if from < to { (from..to).contains(&minute) } else { minute >= from || minute < to }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        write!(f, "{:02}:{:02} to {:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

/// The minute of the day by the local clock.
fn minute_of_day() -> u16 {
    let now = jiff::Zoned::now();
    u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs())
}

/// The rules of the model that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverRules {
    /// The model's id.
    pub id: String,
    pub rules: Handover,
}

/// Why a request was handed over, in a word for headers and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverReason {
    TooLong,
    Queue,
    Memory,
    Hours,
}

impl HandoverReason {
    pub fn word(self) -> &'static str {
        match self {
            Self::TooLong => "prompt-too-long",
            Self::Queue => "queue",
            Self::Memory => "memory",
            Self::Hours => "hours",
        }
    }
}

impl Fleet {
    /// The rules of the model of this name; `None` if there are none, or if the name chooses an adapter, which others lack.
    pub fn handover(&self, name: &str) -> Result<Option<HandoverRules>, Failure> {
        let config = self.config();
        let route = self.names(&config, |names| names.resolve(name))?;
        let model = &config.models[route.model];
        let rules = model.handover.clone().filter(|_| route.adapter.is_none());
        Ok(rules.map(|rules| HandoverRules { id: model.id.clone(), rules }))
    }

    /// Why the model should not get another request now, if there is a reason.
    pub async fn overflow(&self, model: &HandoverRules) -> Option<HandoverReason> {
        if model.rules.hours.is_some_and(|hours| hours.within(minute_of_day())) {
            return Some(HandoverReason::Hours);
        }
        if model.rules.streams.is_none() && !model.rules.memory {
            return None;
        }
        let needed = if model.rules.memory { self.need(&model.id).await } else { None };
        overflow(&self.stats(false).await, model, needed)
    }

    /// Bytes that a model takes when it is loaded, as far as that is known.
    async fn need(&self, id: &str) -> Option<u64> {
        match self.measured(id).await {
            Ok(Some(bytes)) => Some(bytes),
            Ok(None) => self.target(id).await.ok().map(|target| target.card.weight_bytes),
            Err(_) => None,
        }
    }
}

fn overflow(stats: &FleetStats, model: &HandoverRules, needed: Option<u64>) -> Option<HandoverReason> {
    let own = stats.models.iter().find(|own| own.id == model.id)?;
    if model.rules.streams.is_some_and(|most| own.streams + own.waiting >= most) {
        return Some(HandoverReason::Queue);
    }
    if !model.rules.memory || own.state != ModelState::Idle {
        return None;
    }
    // Idle models make room; those with answers, and pinned ones, do not.
    let stays = |other: &&ModelStats| other.id != model.id && (other.pinned || other.streams + other.waiting > 0);
    let taken: u64 = stats.models.iter().filter(stays).map(|other| other.bytes).sum();
    let room = stats.memory_budget.saturating_sub(taken);
    needed.filter(|needed| *needed > room).map(|_| HandoverReason::Memory)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn model(id: &str, state: ModelState, streams: u64, bytes: u64) -> ModelStats {
        ModelStats {
            id: id.into(),
            state,
            reason: None,
            streams,
            waiting: 0,
            workers: 0,
            pid: None,
            bytes,
            measured_bytes: None,
            pinned: false,
            expires_in_s: None,
            loads: 0,
            deaths: 0,
            progress: None,
            loaded: None,
            worker: None,
            adapters: Vec::new(),
        }
    }

    #[test]
    fn a_model_hands_over_when_its_queue_is_deep_or_others_need_the_memory() {
        let check = |streams: Option<u64>, memory: bool, models: Vec<ModelStats>, expected| {
            let stats = FleetStats { memory_budget: 100, memory_used: 0, models };
            let rules = Handover { to: "big".into(), too_long: true, streams, memory, hours: None };
            assert_eq!(overflow(&stats, &HandoverRules { id: "m".into(), rules }, Some(60)), expected);
        };
        let loaded = |streams| model("m", ModelState::Ready, streams, 60);
        check(Some(2), false, vec![loaded(1)], None);
        check(Some(2), false, vec![loaded(2)], Some(HandoverReason::Queue));
        check(None, false, vec![loaded(99)], None);
        let idle = || model("m", ModelState::Idle, 0, 0);
        let other = |streams| model("o", ModelState::Ready, streams, 50);
        check(None, true, vec![idle(), other(0)], None);
        check(None, true, vec![idle(), other(1)], Some(HandoverReason::Memory));
        check(None, true, vec![loaded(0), other(1)], None);
        check(None, true, vec![idle(), ModelStats { pinned: true, ..other(0) }], Some(HandoverReason::Memory));
        check(None, false, vec![idle(), other(1)], None);
    }

    #[test]
    fn hours_may_go_over_midnight() {
        let check = |text: &str, inside: &[&str], outside: &[&str]| {
            let hours = Hours::parse(text).unwrap();
            let minute = |text: &str| {
                Hours::parse(&format!("{text}-{}", if text == "00:00" { "00:01" } else { "00:00" })).unwrap().from
            };
            assert!(inside.iter().all(|time| hours.within(minute(time))), "{text}");
            assert!(!outside.iter().any(|time| hours.within(minute(time))), "{text}");
        };
        check("22:00-07:00", &["22:00", "23:59", "00:00", "06:59"], &["07:00", "12:00", "21:59"]);
        check("09:30 - 17:00", &["09:30", "16:59"], &["09:29", "17:00", "00:00"]);
        check("00:00-23:59", &["00:00", "23:58"], &["23:59"]);
        for wrong in ["", "22:00", "22-07", "24:00-07:00", "22:60-07:00", "+2:00-07:00", "07:00-07:00", "a:b-c:d"] {
            assert!(Hours::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Hours::parse("22:00-07:05").unwrap().to_string(), "22:00 to 07:05");
        assert!(minute_of_day() < 24 * 60);
    }

    #[test]
    fn rules_are_told_in_words() {
        let rules = |too_long, hours: Option<&str>, streams| {
            let hours = hours.map(|text| Hours::parse(text).unwrap());
            Handover { to: "big".into(), too_long, streams, memory: streams.is_some(), hours }.told()
        };
        assert_eq!(rules(true, None, None), "hands over to 'big' if a prompt does not fit");
        let all = "hands over to 'big' from 22:00 to 07:00, if a prompt does not fit, if 8 requests run or wait, if it is not loaded \
                   and memory is short";
        assert_eq!(rules(true, Some("22:00-07:00"), Some(8)), all);
        assert_eq!(rules(false, None, None), "hands over to 'big' never, as all its rules are off");
    }
}
