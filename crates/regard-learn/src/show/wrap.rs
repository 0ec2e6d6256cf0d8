//! Lines that fit the terminal: broken between words, with their indent, never inside a word.

/// Columns that a text takes, without the codes of colours.
pub fn columns(text: &str) -> usize {
    let mut count = 0;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            // A colour ends with the first letter.
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            count += 1;
        }
    }
    count
}

/// The lines of a Markdown text, with each paragraph and each item of a list in one line.
pub fn paragraphs(text: &str) -> Vec<String> {
    let alone = |line: &str| line.is_empty() || line.starts_with("    ") || line.starts_with(['#', '|']);
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if !alone(line) && !alone(last) && !line.starts_with("- ") => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

/// A line in pieces of at most `width` columns. Items of a list hang; parts of a preformatted line (four spaces, parts apart by two or
/// more) get a line each; pictures stay as they are.
pub fn wrap(line: &str, width: usize) -> Vec<String> {
    if columns(line) <= width || line.contains('▀') {
        return vec![line.to_owned()];
    }
    let indent: String = line.chars().take_while(|c| *c == ' ').collect();
    let text = &line[indent.len()..];
    if indent.len() >= 4 && text.contains("  ") {
        let parts = text.split("  ").map(str::trim).filter(|part| !part.is_empty());
        return parts.flat_map(|part| fold(part, &indent, width)).collect();
    }
    fold(text, &indent, width)
}

fn fold(text: &str, indent: &str, width: usize) -> Vec<String> {
    let hanging = if text.starts_with("- ") { format!("{indent}  ") } else { indent.to_owned() };
    let mut lines = Vec::new();
    let mut now = indent.to_owned();
    for word in text.split_whitespace() {
        if now.trim().is_empty() {
            now.push_str(word);
        } else if columns(&now) + 1 + columns(word) <= width {
            now = format!("{now} {word}");
        } else {
            lines.push(std::mem::replace(&mut now, format!("{hanging}{word}")));
        }
    }
    lines.push(now);
    lines
}

#[cfg(test)]
mod tests {
    use super::{columns, paragraphs, wrap};
    use crate::exercises::EXERCISES;

    #[test]
    fn long_lines_keep_their_indent_and_their_words() {
        assert_eq!(wrap("  one two three four", 12), ["  one two", "  three four"]);
        assert_eq!(wrap("short", 12), ["short"]);
        assert_eq!(wrap("- one two three", 9), ["- one two", "  three"]);
        assert_eq!(wrap("    a = 1    b = 2    c = 3", 20), ["    a = 1", "    b = 2", "    c = 3"]);
    }

    #[test]
    fn paragraphs_and_items_are_joined_and_code_stays() {
        let text = "# title\n\none\ntwo\n- item\n  more\n- next\n\n    code\n    code\nend";
        assert_eq!(paragraphs(text), ["# title", "", "one two", "- item more", "- next", "", "    code", "    code", "end"]);
    }

    #[test]
    fn colours_take_no_columns_and_words_stay_whole() {
        assert_eq!(columns("\x1b[31;1mfail\x1b[0m"), 4);
        assert_eq!(wrap("  \x1b[1mone\x1b[0m two three", 10), ["  \x1b[1mone\x1b[0m two", "  three"]);
    }

    #[test]
    fn preformatted_lines_and_tables_of_the_exercises_fit_80_columns() {
        for exercise in EXERCISES {
            for line in exercise.files.text.lines().filter(|line| line.starts_with("    ") || line.starts_with('|')) {
                assert!(columns(line) <= 80, "{}: {line}", exercise.name);
            }
        }
    }
}
