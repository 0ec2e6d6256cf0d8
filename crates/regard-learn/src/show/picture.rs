//! Heat maps in the terminal: two rows of cells per line in half blocks, or digits where there is no colour; and as PNG.

use crate::value::Value;
use std::fmt::Write as _;

/// A matrix to be drawn.
pub struct Map {
    /// Its caption.
    pub title: String,
    /// Rows and columns.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The numbers.
    pub data: Vec<f64>,
}

impl Map {
    /// All but the last dimension are rows.
    pub fn of(title: &str, value: &Value<f64>) -> Self {
        let cols = value.width().max(1);
        Self { title: title.to_owned(), rows: value.data.len() / cols, cols, data: value.data.clone() }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.data[row * self.cols + col]
    }
}

/// Cells of a map that fit beside two others in 80 columns.
const MOST_ROWS: usize = 16;
const MOST_COLS: usize = 24;

/// Expected, yours and the difference, side by side.
pub fn three(expected: &Value<f64>, yours: &Value<f64>) -> [Map; 3] {
    let difference = expected.data.iter().zip(&yours.data).map(|(a, b)| if a.is_nan() && b.is_nan() { 0.0 } else { b - a }).collect();
    let apart = Value::new(&expected.shape, difference);
    [Map::of("expected", expected), Map::of("yours", yours), Map::of("difference", &apart)]
}

/// Whether maps are small enough for the terminal.
pub fn fits(map: &Map) -> bool {
    map.rows <= MOST_ROWS && map.cols <= MOST_COLS && map.rows * map.cols > 1
}

/// The largest absolute number of the first two, which is full colour in all.
fn range(maps: &[Map]) -> f64 {
    let finite = maps.iter().flat_map(|m| &m.data).filter(|x| x.is_finite());
    finite.fold(0.0, |top: f64, x| top.max(x.abs()))
}

/// From white at 0 to blue above and red below; NaN is magenta.
fn colour(x: f64, range: f64) -> [u8; 3] {
    if !x.is_finite() {
        return [0xc4, 0x00, 0x6a];
    }
    let share = if range > 0.0 { (x.abs() / range).sqrt().min(1.0) } else { 0.0 };
    let fade = |full: f64| (255.0 + (full - 255.0) * share) as u8;
    if x >= 0.0 { [fade(8.0), fade(64.0), fade(160.0)] } else { [fade(178.0), fade(24.0), fade(43.0)] }
}

/// Lines of half blocks in colour.
pub fn coloured(maps: &[Map]) -> Vec<String> {
    let range = range(maps);
    let rows = maps.iter().map(|m| m.rows).max().unwrap_or(0);
    let mut lines = vec![titles(maps, 2)];
    for pair in 0..rows.div_ceil(2) {
        let mut line = String::from("  ");
        for map in maps {
            for col in 0..map.cols {
                let cell = |row: usize| (row < map.rows).then(|| colour(map.at(row, col), range));
                match (cell(2 * pair), cell(2 * pair + 1)) {
                    (Some([a, b, c]), Some([d, e, f])) => {
                        let _ = write!(line, "\x1b[38;2;{a};{b};{c};48;2;{d};{e};{f}m▀▀\x1b[0m");
                    }
                    (Some([a, b, c]), None) => {
                        let _ = write!(line, "\x1b[38;2;{a};{b};{c}m▀▀\x1b[0m");
                    }
                    _ => line.push_str("  "),
                }
            }
            line.push_str(&" ".repeat(width(map, 2) - 2 * map.cols));
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// Lines of digits: 0 to 9 in proportion to the largest number, a minus before negative ones, `!` for what is no number.
pub fn digits(maps: &[Map]) -> Vec<String> {
    let range = range(maps);
    let rows = maps.iter().map(|m| m.rows).max().unwrap_or(0);
    let mut lines = vec![titles(maps, 2)];
    for row in 0..rows {
        let mut line = String::from("  ");
        for map in maps {
            for col in 0..map.cols {
                let cell = if row < map.rows { digit(map.at(row, col), range) } else { "  ".to_owned() };
                line.push_str(&cell);
            }
            line.push_str(&" ".repeat(width(map, 2) - 2 * map.cols));
        }
        lines.push(line.trim_end().to_owned());
    }
    if range > 0.0 {
        lines.push(format!("  (9 is {range:.3}, . is 0, ! is no number)"));
    }
    lines
}

/// One map of shares of 1 with words on its axes: a row and a column each, cells in percent.
pub fn labelled(map: &Map, rows: &[&str], cols: &[&str], colours: bool) -> Vec<String> {
    let left = rows.iter().map(|word| word.chars().count()).max().unwrap_or(0).max("query".len());
    let cell = cols.iter().map(|word| word.chars().count()).max().unwrap_or(0).max(3) + 1;
    let header: String = cols.iter().map(|word| format!("{word:>cell$}")).collect();
    let mut lines = vec![format!("  {:left$} {:>cell$}", "", "key"), format!("  {:left$} {header}", "query")];
    for (row, word) in rows.iter().enumerate() {
        let mut line = format!("  {word:>left$} ");
        for col in 0..map.cols {
            let share = map.at(row, col);
            let text = format!("{:>cell$.0}", 100.0 * share);
            if colours {
                let [r, g, b] = colour(share, 1.0);
                let ink = if share > 0.2 { 97 } else { 30 };
                let _ = write!(line, "\x1b[{ink};48;2;{r};{g};{b}m{text}\x1b[0m");
            } else {
                line.push_str(&text);
            }
        }
        lines.push(line);
    }
    lines
}

fn digit(x: f64, range: f64) -> String {
    if !x.is_finite() {
        return " !".to_owned();
    }
    if x == 0.0 {
        return " .".to_owned();
    }
    let level = (9.0 * x.abs() / range).round();
    format!("{}{level}", if x < 0.0 && level > 0.0 { '-' } else { ' ' })
}

fn width(map: &Map, cell: usize) -> usize {
    (cell * map.cols).max(map.title.len()) + 3
}

fn titles(maps: &[Map], cell: usize) -> String {
    let mut line = String::from("  ");
    for map in maps {
        let _ = write!(line, "{:1$}", map.title, width(map, cell));
    }
    line.trim_end().to_owned()
}

/// The maps as a PNG, side by side, in the colours of the terminal.
pub fn png(maps: &[Map]) -> Result<Vec<u8>, png::EncodingError> {
    const CELL: usize = 24;
    const GAP: usize = 16;
    let range = range(maps);
    let rows = maps.iter().map(|m| m.rows).max().unwrap_or(0);
    let wide = maps.iter().map(|m| m.cols * CELL + GAP).sum::<usize>() + GAP;
    let high = rows * CELL + 2 * GAP;
    let mut pixels = vec![0xe8; wide * high * 3];
    let mut left = GAP;
    for map in maps {
        for (at, x) in map.data.iter().enumerate() {
            let (row, col) = (at / map.cols, at % map.cols);
            for y in 0..CELL {
                let start = ((GAP + row * CELL + y) * wide + left + col * CELL) * 3;
                pixels[start..start + 3 * CELL].chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&colour(*x, range)));
            }
        }
        left += map.cols * CELL + GAP;
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, wide as u32, high as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps() -> [Map; 3] {
        three(&Value::new(&[2, 2], vec![1.0, 0.0, 0.5, 0.5]), &Value::new(&[2, 2], vec![1.0, 0.0, f64::NAN, 1.0]))
    }

    #[test]
    fn digits_show_size_sign_and_what_is_no_number() {
        let lines = digits(&maps());
        assert_eq!(lines[0], "  expected   yours   difference");
        assert_eq!(lines[1], "   9 .        9 .     . .");
        assert_eq!(lines[2], "   5 5        ! 9     ! 5");
    }

    #[test]
    fn two_rows_share_a_line_in_colour() {
        let lines = coloured(&maps());
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1].matches("▀▀").count(), 6);
    }

    #[test]
    fn a_map_with_words_has_them_on_both_axes() {
        let map = Map::of("", &Value::new(&[2, 2], vec![1.0, 0.0, 0.25, 0.75]));
        let lines = labelled(&map, &["the", "cat"], &["the", "cat"], false);
        assert_eq!(lines, ["         key", "  query  the cat", "    the  100   0", "    cat   25  75"]);
        let width = |line: &String| crate::show::columns(line);
        assert!(labelled(&map, &["the", "cat"], &["the", "cat"], true).iter().zip(&lines).all(|(a, b)| width(a) == width(b)));
    }

    #[test]
    fn a_picture_is_a_png_of_the_right_size() {
        let bytes = png(&maps()).expect("it can be made");
        let reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().expect("a PNG");
        assert_eq!((reader.info().width, reader.info().height), (16 + 3 * (48 + 16), 48 + 32));
    }
}
