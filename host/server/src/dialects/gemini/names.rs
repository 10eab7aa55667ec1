//! Names of fields. Google's servers take each in camel case and in snake case, and clients send both.

use crate::dialects::fields::Field;

/// The member with this name in camel case, or else in snake case.
pub(super) fn get<'a>(field: &Field<'a>, name: &str) -> Field<'a> {
    let camel = field.get(name);
    if !camel.is_absent() {
        return camel;
    }
    let snake = field.get(&snake(name));
    if snake.is_absent() { camel } else { snake }
}

pub(super) fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
