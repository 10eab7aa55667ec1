//! Parses JSON into values with memory accounting: objects and lists are charged to the request's memory before they
//! are allocated. Parsed JSON can take a hundred times as many bytes as its text (`{"":0}` takes about 500), so the
//! body's length is no bound for it.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::super::{
    ApiError, ErrorCode,
    memory::{Meter, RequestMemory},
};

/// Overhead of the allocator, per allocation.
const ALLOCATION_BYTES: usize = 16;
/// Capacity of the first allocation of a list or object.
const ITEMS_MIN: usize = 4;
/// An object's entry: value, name, hash, and its slot in the hash table, which is at worst half empty.
const ENTRY_BYTES: usize = size_of::<Value>() + size_of::<String>() + size_of::<u64>() + 2 * (size_of::<usize>() + 1);

/// Parses a text. `serde_json` limits the depth to 128 levels.
pub(super) fn read(text: &str, memory: &RequestMemory) -> Result<Value, ApiError> {
    let mut meter = memory.meter();
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Metered(&mut meter).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    read.map_err(|error| {
        let invalid = || ApiError::new(ErrorCode::InvalidRequest, format!("is not JSON: {error}"));
        meter.refusal().unwrap_or_else(invalid)
    })
}

struct Metered<'a, 'b>(&'a mut Meter<'b>);

impl Metered<'_, '_> {
    fn take<E: de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        if self.0.take(bytes) { Ok(()) } else { Err(E::custom("out of memory")) }
    }

    /// Charges for one more item of `size` bytes after `count`, following the doubling of the capacity.
    fn grow<E: de::Error>(&mut self, count: usize, size: usize) -> Result<(), E> {
        match count {
            0 => self.take(ALLOCATION_BYTES + ITEMS_MIN * size),
            count if count >= ITEMS_MIN && count.is_power_of_two() => self.take(count * size),
            _ => Ok(()),
        }
    }

    fn text<E: de::Error>(&mut self, text: &str) -> Result<Value, E> {
        self.take(ALLOCATION_BYTES + text.len())?;
        Ok(Value::String(text.to_owned()))
    }
}

impl<'de> DeserializeSeed<'de> for Metered<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metered<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: de::Error>(mut self, value: &str) -> Result<Value, E> {
        self.text(value)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let Some(item) = items.next_element_seed(Metered(&mut *self.0))? else { return Ok(Value::Array(list)) };
            self.grow(list.len(), size_of::<Value>())?;
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            self.take(ALLOCATION_BYTES + name.len())?;
            self.grow(object.len(), ENTRY_BYTES)?;
            object.insert(name, fields.next_value_seed(Metered(&mut *self.0))?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::shares::Shares;

    const ALL: usize = 1 << 30;

    /// Bytes charged for reading a text.
    fn taken(text: &str) -> usize {
        let shares = Shares::new(ALL);
        let memory = RequestMemory::new(&shares, 0);
        read(text, &memory).unwrap();
        let mut rest = 0;
        let mut taken = Vec::new();
        for power in (0..30).rev() {
            if let Some(share) = shares.take(0, 1 << power) {
                taken.push(share);
                rest += 1 << power;
            }
        }
        ALL - rest
    }

    #[test]
    fn reads_values_as_serde_json_does() {
        for text in [
            r#"{"a":[1,-2,0.5,1e300,true,null,"x\n\u00e9"],"b":{},"a b":[[],{"":""}],"c":18446744073709551615}"#,
            r#"{"twice":1,"other":2,"twice":3}"#,
            "\"text\"",
            "0",
        ] {
            let value = read(text, &RequestMemory::default()).unwrap();
            assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(value.to_string(), serde_json::from_str::<Value>(text).unwrap().to_string());
        }
        // serde_json's internal representation of raw values has no special meaning here.
        let hidden = r#"{"$serde_json::private::RawValue":"[[1]]"}"#;
        assert_eq!(read(hidden, &RequestMemory::default()).unwrap().to_string(), hidden);
        for text in ["[1,]", "{\"a\":1} 2", "1e999", "nul", &"[".repeat(129), &"[".repeat(100_000)] {
            let error = read(text, &RequestMemory::default()).unwrap_err();
            assert!(error.message.starts_with("is not JSON: "), "{error}");
        }
    }

    #[test]
    fn charges_cover_the_memory_of_parsed_values() {
        let many = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        let fields = |count: usize| {
            let fields: Vec<String> = (0..count).map(|place| format!("\"f{place}\":{place}")).collect();
            format!("{{{}}}", fields.join(","))
        };
        for text in [
            many("{\"\":0}", 20_000),
            many("0", 100_000),
            many("[]", 50_000),
            many("[0]", 20_000),
            many("\"\"", 50_000),
            many("\"a text of some length, as most of them are\"", 20_000),
            many("{\"a\":0,\"b\":1,\"c\":[2],\"d\":{}}", 5_000),
            fields(50_000),
            many(&fields(10), 3_000),
            format!("\"{}\"", "x".repeat(1 << 20)),
        ] {
            let paid = taken(&text);
            let (value, peak) = pensieve_fuzz::peak_of(|| serde_json::from_str::<Value>(&text).unwrap());
            drop(value);
            let start = &text[..text.len().min(40)];
            assert!(peak <= paid + paid / 2, "{start}: {peak} bytes at its peak, {paid} charged");
            assert!(paid <= 3 * peak + STEP, "{start}: {paid} charged for {peak} bytes");
        }
    }

    const STEP: usize = 128 << 10;

    #[test]
    fn stops_when_memory_is_exhausted() {
        let shares = Shares::new(1 << 20);
        let text = format!("[{}]", vec!["{\"\":0}"; 100_000].join(","));
        let memory = RequestMemory::new(&shares, 0);
        let (read, peak) = pensieve_fuzz::peak_of(|| read(&text, &memory));
        assert_eq!(read.unwrap_err().code, ErrorCode::Overloaded);
        assert!(peak < 2 << 20, "{peak}");
    }
}
