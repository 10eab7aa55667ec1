//! JSON as Python's `json.dumps` writes it with `ensure_ascii=False`, the variant that transformers gives templates.

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind, from_args},
};

use super::{
    meter::{self, DEPTH_MAX, charge},
    python,
};

/// Limit on indentation and on separators.
const LAYOUT_BYTES_MAX: usize = 64;

struct Layout {
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

/// The filter `tojson`.
pub(super) fn tojson(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (ensure_ascii, indent, separators, sort_keys, named): (
        Option<Value>,
        Option<Value>,
        Option<Value>,
        Option<Value>,
        Kwargs,
    ) = from_args(args)?;
    let pick = |name: &str, given: Option<Value>| match given {
        Some(value) => Ok(Some(value)),
        None => named.get::<Option<Value>>(name),
    };
    let indent = pick("indent", indent)?.filter(|indent| !indent.is_none());
    let separators = pick("separators", separators)?.filter(|separators| !separators.is_none());
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (ensure_ascii, sort_keys) = (pick("ensure_ascii", ensure_ascii)?, pick("sort_keys", sort_keys)?);
    named.assert_all_used()?;

    let indent = indent.map(|indent| match indent.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let width = usize::try_from(indent.as_i64().unwrap_or(i64::MAX).max(0)).unwrap_or(usize::MAX);
            (width <= LAYOUT_BYTES_MAX).then(|| " ".repeat(width)).ok_or_else(too_wide)
        }
    });
    let indent = indent.transpose()?;
    let (item, key) = match separators {
        Some(pair) => {
            let part = |place| Ok::<_, Error>(python::text(&pair.get_item_by_index(place)?)?.into_owned());
            (part(0)?, part(1)?)
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    if [indent.as_deref().unwrap_or_default(), &item, &key].iter().any(|text| text.len() > LAYOUT_BYTES_MAX) {
        return Err(too_wide());
    }
    let layout = Layout { indent, item, key, sort_keys: is_set(sort_keys), ensure_ascii: is_set(ensure_ascii) };
    let mut text = String::new();
    layout.write(value, &mut text, 0)?;
    Ok(Value::from(text))
}

fn too_wide() -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("its JSON is indented by more than {LAYOUT_BYTES_MAX} characters"))
}

impl Layout {
    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        charge(1)?;
        if depth > DEPTH_MAX {
            return Err(meter::too_deep());
        }
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)?),
            ValueKind::String => self.quote(value.as_str().unwrap_or_default(), out)?,
            ValueKind::Seq => {
                let items = value.try_iter()?;
                self.enclose(out, ['[', ']'], depth, items, |out, item| self.write(&item, out, depth + 1))?;
            }
            ValueKind::Map => {
                let pairs = value.as_object().and_then(minijinja::value::DynObject::try_iter_pairs);
                let mut pairs: Vec<_> = pairs.into_iter().flatten().collect();
                if self.sort_keys {
                    pairs.sort();
                }
                self.enclose(out, ['{', '}'], depth, pairs.into_iter(), |out, (key, item)| {
                    match key.as_str() {
                        Some(key) => self.quote(key, out)?,
                        None => self.quote(&scalar(&key)?, out)?,
                    }
                    out.push_str(&self.key);
                    self.write(&item, out, depth + 1)
                })?;
            }
            other => {
                return Err(Error::new(ErrorKind::BadSerialization, format!("{other} cannot be written as JSON")));
            }
        }
        Ok(())
    }

    fn enclose<T>(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                out.push_str(&self.item);
            }
            is_empty = false;
            self.begin_line(out, depth + 1)?;
            write(out, item)?;
        }
        if !is_empty {
            self.begin_line(out, depth)?;
        }
        out.push(close);
        Ok(())
    }

    fn begin_line(&self, out: &mut String, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            charge(indent.len() * depth)?;
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
        Ok(())
    }

    fn quote(&self, text: &str, out: &mut String) -> Result<(), Error> {
        charge(text.len())?;
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                char if char < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(char))),
                char if self.ensure_ascii && !(' '..='~').contains(&char) => {
                    let mut units = [0; 2];
                    char.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                char => out.push(char),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn scalar(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => value.is_true().to_string(),
        ValueKind::Number if value.is_integer() => value.to_string(),
        ValueKind::Number => match f64::try_from(value.clone())? {
            number if number.is_nan() => "NaN".to_owned(),
            number if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            number => python::float(number),
        },
        other => return Err(Error::new(ErrorKind::BadSerialization, format!("{other} cannot be a key of JSON"))),
    })
}
