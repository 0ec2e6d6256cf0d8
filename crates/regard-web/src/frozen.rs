//! The page with its data in one file, which opens from the disk: what `regard look --html` writes.
//!
//! Answers are kept under the words that they are asked with; what is not there is said to be missing. Scripts are put one behind the other, without the
//! lines that join them as modules.

use crate::answers::{self, Answer, Look, Tile};
use crate::page::{FILES, INDEX};
use crate::runs::Kept;
use base64::Engine;
use regard_model::{Edits, Model, Pool, Sink};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Numbers of all tiles together, at most.
const NUMBERS: usize = 1 << 21;
/// Cells of a side of a tile, at most.
const CELLS: usize = 256;

fn packed(numbers: &[f32]) -> Value {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    json!({ "f32": base64::engine::general_purpose::STANDARD.encode(bytes) })
}

/// Answers by the words that they are asked with.
fn answers(kept: &Kept) -> Answer<(Map<String, Value>, usize)> {
    let (shape, n) = (kept.model.shape(), kept.ids.len());
    let cells = CELLS.min(((NUMBERS / (shape.layers * shape.heads)) as f64).sqrt() as usize).max(16);
    let step = n.div_ceil(cells);
    let look = Look { pool: Pool::Mean, sink: Sink::Show };
    let (mut all, run) = (Map::new(), format!("/api/run/{}", kept.id));
    for layer in 0..shape.layers {
        all.insert(format!("{run}/heads?layer={layer}"), answers::heads(kept, layer)?);
        all.insert(format!("{run}/thumbnails?layer={layer}&pool=mean&sink=show"), packed(&answers::thumbnails(kept, layer, look)?));
        for head in 0..shape.heads {
            let whole = Tile { layer, head, row: 0, rows: n, key: 0, keys: n, step };
            let words = format!("{run}/tile?layer={layer}&head={head}&row=0&rows={n}&key=0&keys={n}&step={step}&pool=mean&sink=show");
            all.insert(words, packed(&answers::tile(kept, whole, look)?));
        }
    }
    if kept.model.has_head() {
        all.insert(format!("{run}/lens?row={}", n - 1), answers::lens(kept, n - 1)?);
    }
    if let Ok(steps) = answers::steps(kept, 0, 0) {
        all.insert(format!("{run}/steps?layer=0&head=0"), steps);
    }
    Ok((all, step))
}

/// A script without the lines that join it with others.
fn alone(script: &str) -> String {
    let lines = script.lines().filter(|line| !line.starts_with("import "));
    lines.map(|line| format!("{}\n", line.strip_prefix("export ").unwrap_or(line))).collect()
}

/// The page of a text, as one file.
///
/// # Errors
/// The reason, where tokens or edits do not fit the model.
pub fn frozen(model: Model, text: &str, edits: &Edits) -> Result<String, String> {
    let build = || -> Answer<String> {
        let model = Arc::new(model);
        let described = answers::model(0, &model);
        let kept = Kept::make(0, model, text.to_owned(), edits.clone())?;
        let (mut all, step) = answers(&kept)?;
        all.insert("/api/models".to_owned(), json!({ "version": env!("CARGO_PKG_VERSION"), "models": [described], "begin": text }));
        all.insert("/api/run".to_owned(), answers::summary(&kept)?);
        let data = json!({ "answers": all, "step": step, "edits": edits.canonical(), "text": text });
        // Nothing in the data can end the element that it stands in.
        let data = data.to_string().replace('<', "\\u003c");
        let scripts: String = FILES.iter().filter(|file| file.name.ends_with(".js")).map(|file| alone(file.content)).collect();
        let style = FILES.iter().find(|file| file.name == "style.css").map_or("", |file| file.content);
        let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";
        Ok(INDEX
            .replace(
                "<link rel=\"stylesheet\" href=\"style.css\">",
                &format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<style>\n{style}</style>"),
            )
            .replace(
                "<script type=\"module\" src=\"main.js\"></script>",
                &format!("<script type=\"application/json\" id=\"frozen\">{data}</script>\n<script type=\"module\">\n{scripts}</script>"),
            ))
    };
    build().map_err(|refusal| refusal.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Put one behind the other, scripts share their names.
    #[test]
    fn no_name_is_used_by_two_scripts() {
        let mut seen = BTreeMap::new();
        for file in FILES.iter().filter(|file| file.name.ends_with(".js")) {
            for line in alone(file.content).lines().filter(|line| !line.starts_with([' ', '}', '/'])) {
                let words: Vec<&str> = line.split([' ', '(', '=', ';']).filter(|word| !word.is_empty() && *word != "async").collect();
                if let ["const" | "let" | "function" | "class", name, ..] = words.as_slice() {
                    let before = seen.insert((*name).to_owned(), file.name);
                    assert!(before.is_none(), "{name} is in {} and in {}", before.unwrap_or_default(), file.name);
                }
            }
        }
        assert!(seen.len() > 80, "{}", seen.len());
    }

    #[test]
    fn data_cannot_end_its_element() {
        let model = Model::built_in().expect("it is in the crate");
        let page = frozen(model, "Emma and David", &Edits::default()).expect("letters that it knows");
        assert_eq!(page.matches("</script>").count(), 2, "that of the data and that of the scripts");
        assert!(!page.contains("import ") && !page.contains("href=\"style.css\""));
    }
}
