//! CSV files of numbers.

use super::{InputError, MAX_CSV};
use ndarray::Array2;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Numbers in lines; lines that begin with `#` are comments, and a first line without any number is a header.
pub(super) fn read_csv(path: &Path, file: &mut File) -> Result<(Array2<f64>, Vec<String>), InputError> {
    let malformed = |reason: String| InputError::Malformed { path: path.to_owned(), kind: "CSV", reason };
    // One byte more than is allowed: whoever reads it has a file that is too long.
    let mut limited = file.take(MAX_CSV + 1);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).comment(Some(b'#')).from_reader(&mut limited);
    let (mut values, mut header, mut cols, mut rows) = (Vec::new(), Vec::new(), 0, 0usize);
    for record in reader.records() {
        let record = record.map_err(|e| malformed(e.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let numbers: Vec<Option<f64>> = record.iter().map(|cell| cell.trim().parse().ok()).collect();
        if rows == 0 && header.is_empty() && numbers.iter().all(Option::is_none) {
            header = record.iter().map(|cell| cell.trim_start_matches('\u{feff}').to_owned()).collect();
            continue;
        }
        cols = numbers.len();
        for (column, number) in numbers.into_iter().enumerate() {
            let text = || record.get(column).unwrap_or("").to_owned();
            values.push(number.ok_or_else(|| InputError::Cell { path: path.to_owned(), line, column: column + 1, text: text() })?);
        }
        rows += 1;
    }
    if limited.limit() == 0 {
        return Err(InputError::LongCsv { path: path.to_owned() });
    }
    let values = Array2::from_shape_vec((rows, cols), values).map_err(|e| malformed(e.to_string()))?;
    if rows == 0 { Err(malformed("no line of numbers".to_owned())) } else { Ok((values, header)) }
}
