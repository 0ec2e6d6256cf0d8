//! What the judge shows: in words, in numbers, in pictures.

pub mod picture;
mod verdict;
mod wrap;

pub use verdict::{Look, verdict};
pub use wrap::{columns, paragraphs, wrap};

use crate::value::Value;

/// The place of an entry in each dimension.
pub fn index(shape: &[usize], mut at: usize) -> Vec<usize> {
    let mut places = vec![0; shape.len()];
    for (place, size) in places.iter_mut().zip(shape).rev() {
        *place = at % size;
        at /= size;
    }
    places
}

/// A number as short as it can be told.
pub fn short(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x == 0.0 || (x.fract() == 0.0 && x.abs() < 1e6) {
        return format!("{}", x + 0.0);
    }
    if (1e-3..1e6).contains(&x.abs()) { format!("{x:.4}") } else { format!("{x:.2e}") }
}

/// An array in lines, a row each; long ones end in dots.
pub fn numbers(name: &str, value: &Value<f64>) -> Vec<String> {
    const ROWS: usize = 6;
    const COLS: usize = 8;
    if value.shape.is_empty() {
        return vec![format!("{name} = {}", short(value.data[0]))];
    }
    let width = value.width().max(1);
    let rows = value.data.len() / width;
    let row = |i: usize| {
        let cells: Vec<String> = value.data[i * width..(i + 1) * width].iter().take(COLS).map(|x| short(*x)).collect();
        format!("[{}{}]", cells.join(" "), if width > COLS { " .." } else { "" })
    };
    let head = format!("{name} {:?} = ", value.shape);
    let mut lines: Vec<String> =
        (0..rows.min(ROWS)).map(|i| format!("{}{}", if i == 0 { head.clone() } else { " ".repeat(head.len()) }, row(i))).collect();
    if rows > ROWS {
        lines.push(format!("{}.. {} more rows", " ".repeat(head.len()), rows - ROWS));
    }
    lines
}
