//! Wrong answers, kept as changes of the solution: what people write instead of a line.
//!
//! ```text
//! == no-max                                        an id; with the word `whole` after it, the lines are the answer
//! -    e = np.exp(x - top)                         lines of the solution, in a row
//! +    e = np.exp(x)                               what stands there instead
//! ```

/// A wrong answer and its id.
pub struct Wrong {
    /// The mistake.
    pub id: String,
    /// The file.
    pub source: String,
}

/// All wrong answers of a file.
///
/// # Panics
/// When a change does not fit the solution: the files are ours, and the tests read all of them.
pub fn wrong_answers(solution: &str, changes: &str) -> Vec<Wrong> {
    let sections = format!("\n{changes}");
    sections
        .split("\n== ")
        .skip(1)
        .map(|section| {
            let (head, body) = section.split_once('\n').unwrap_or((section, ""));
            let (id, whole) = head.split_once(' ').unwrap_or((head, ""));
            let source = if whole == "whole" { String::new() } else { solution.to_owned() };
            Wrong { id: id.to_owned(), source: changed(id, source, body) }
        })
        .collect()
}

fn changed(id: &str, mut source: String, body: &str) -> String {
    let (mut old, mut new) = (String::new(), String::new());
    let apply = |source: &mut String, old: &mut String, new: &mut String| {
        if old.is_empty() {
            source.push_str(new);
        } else {
            assert_eq!(source.matches(old.as_str()).count(), 1, "{id}: not once in the solution:\n{old}");
            *source = source.replace(old.as_str(), new);
        }
        old.clear();
        new.clear();
    };
    let mut added = false;
    for line in body.lines() {
        let sign = line.chars().next();
        let rest = line.get(1..).unwrap_or_default();
        match sign {
            Some('-') => {
                // Lines that do not follow each other in the solution are changes of their own.
                let grown = format!("{old}{rest}\n");
                if added || (!old.is_empty() && !source.contains(&grown)) {
                    apply(&mut source, &mut old, &mut new);
                    added = false;
                }
                old = format!("{old}{rest}\n");
            }
            Some('+') => {
                new = format!("{new}{rest}\n");
                added = true;
            }
            _ => {}
        }
    }
    apply(&mut source, &mut old, &mut new);
    source
}
