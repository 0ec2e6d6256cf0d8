//! The page with its data in one file that opens from the disk, for `regard look --html`.
//!
//! Responses are stored by the path of their request; the page reports other paths as missing. Scripts are concatenated without the lines that
//! join them as modules.

use crate::api::ApiResult;
use crate::page::{FILES, INDEX};
use crate::run_cache::{CachedRun, Limits, View};
use crate::views::{self, Look, Tile};
use base64::Engine;
use regard_model::{Cancel, Edits, Model, Pool, Sink};
use serde_json::{Map, Value, json};

/// Cells of all tiles together, at most.
const ALL_CELLS: usize = 1 << 21;
/// Cells on a side of a tile, at most.
const SIDE: usize = 256;

fn packed(values: &[f32]) -> Value {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    json!({ "f32": base64::engine::general_purpose::STANDARD.encode(bytes) })
}

/// Responses by path.
fn responses(run: &View<'_>) -> ApiResult<(Map<String, Value>, usize)> {
    let (shape, n) = (run.model.shape(), run.ids.len());
    let cells = SIDE.min(((ALL_CELLS / (shape.layers * shape.heads)) as f64).sqrt() as usize).max(16);
    let step = n.div_ceil(cells);
    let look = Look { pool: Pool::Mean, sink: Sink::Show };
    let (mut all, path) = (Map::new(), format!("/api/run/{}", run.id));
    for layer in 0..shape.layers {
        all.insert(format!("{path}/heads?layer={layer}"), views::heads(run, layer)?);
        all.insert(format!("{path}/thumbnails?layer={layer}&pool=mean&sink=show"), packed(&views::thumbnails(run, layer, look)?));
        for head in 0..shape.heads {
            let whole = Tile { layer, head, row: 0, rows: n, key: 0, keys: n, step };
            let tile_path = format!("{path}/tile?layer={layer}&head={head}&row=0&rows={n}&key=0&keys={n}&step={step}&pool=mean&sink=show");
            all.insert(tile_path, packed(&views::tile(run, whole, look)?));
        }
    }
    if run.model.has_head() {
        all.insert(format!("{path}/lens?row={}", n - 1), views::lens(run, n - 1)?);
    }
    Ok((all, step))
}

/// A script without its `import` lines and `export` keywords.
fn without_modules(script: &str) -> String {
    let lines = script.lines().filter(|line| !line.starts_with("import "));
    lines.map(|line| format!("{}\n", line.strip_prefix("export ").unwrap_or(line))).collect()
}

/// The page of a text, as one HTML file.
///
/// # Errors
/// The reason, when the text is too long or the edits do not fit the model.
pub fn standalone(model: &Model, text: &str, edits: &Edits) -> Result<String, String> {
    let build = || -> ApiResult<String> {
        let (described, cancel) = (views::model(0, model), Cancel::new());
        let cached = CachedRun::make(0, model, text.to_owned(), edits.clone(), Limits::of_this_machine(), &cancel)?;
        let run = cached.view(&cancel);
        let (mut all, step) = responses(&run)?;
        all.insert("/api/models".to_owned(), json!({ "version": env!("CARGO_PKG_VERSION"), "models": [described] }));
        all.insert("/api/run".to_owned(), views::summary(&run)?);
        let shown: Vec<&str> = ["heads", "head", "map"].into_iter().chain(model.has_head().then_some("lens")).collect();
        let data = json!({ "answers": all, "views": shown, "step": step, "edits": edits.canonical(), "text": text });
        // No `<` in the data: it cannot end its element.
        let data = data.to_string().replace('<', "\\u003c");
        let scripts: String = FILES.iter().filter(|file| file.name.ends_with(".js")).map(|file| without_modules(file.content)).collect();
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
    build().map_err(|error| error.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Concatenated scripts share one scope.
    #[test]
    fn no_name_is_used_by_two_scripts() {
        let mut seen = BTreeMap::new();
        for file in FILES.iter().filter(|file| file.name.ends_with(".js")) {
            for line in without_modules(file.content).lines().filter(|line| !line.starts_with([' ', '}', '/'])) {
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
        let page = standalone(&model, "Emma and David", &Edits::default()).expect("letters that it knows");
        assert_eq!(page.matches("</script>").count(), 2, "one of the data and one of the scripts");
        assert!(!page.contains("import ") && !page.contains("href=\"style.css\""));
    }
}
