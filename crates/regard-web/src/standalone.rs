//! The page with its data in one file that opens from the disk, for `regard look --html`.
//!
//! Responses are stored by the path of their request; the page shows only views whose data is there.

use crate::api::ApiResult;
use crate::page::{FILES, INDEX};
use crate::run_cache::{CachedRun, Limits, RunOf, View, sha256};
use crate::views::{self, Look, Tile};
use base64::Engine;
use regard_model::{Cancel, Edits, Model, Pool, Sink};
use serde_json::{Map, Value, json};

/// Cells of all tiles together, at most.
const ALL_CELLS: usize = 1 << 21;
/// Tokens of the lens: the last ones.
const LENS_SHOWN: usize = 24;
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
        if shape.layers * shape.heads * n <= ALL_CELLS / 4 {
            all.insert(format!("{path}/columns?layer={layer}"), packed(&views::columns(run, layer)?));
        }
        for head in 0..shape.heads {
            let whole = Tile { layer, head, row: 0, rows: n, key: 0, keys: n, step };
            let tile_path = format!("{path}/tile?layer={layer}&head={head}&row=0&rows={n}&key=0&keys={n}&step={step}&pool=mean&sink=show");
            all.insert(tile_path, packed(&views::tile(run, whole, look)?));
        }
    }
    if run.model.has_head() {
        let rows = n.min(LENS_SHOWN);
        all.insert(format!("{path}/lens?row={}&rows={rows}", n - rows), views::lens(run, n - rows, rows)?);
    }
    Ok((all, step))
}

/// What a file says about itself.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Its title; the model and the beginning of the text without one.
    pub title: Option<String>,
    /// A sentence below the title.
    pub note: Option<String>,
    /// Layer and head that it opens with.
    pub head: Option<[usize; 2]>,
    /// The command that wrote it.
    pub command: String,
    /// The day it was written, as in 2026-11-18.
    pub date: String,
}

/// Letters of the text in a title.
const TITLE: usize = 40;

fn title(about: &About, model: &str, text: &str) -> String {
    about.title.clone().unwrap_or_else(|| format!("Attention of {model}: {}", text.chars().take(TITLE).collect::<String>()))
}

/// The scripts as an import map of data URLs: each is a module of its own, as on the server.
fn import_map() -> Value {
    let address = |content: &str| {
        let bare = content.replace("from './", "from 'regard/");
        format!("data:text/javascript;base64,{}", base64::engine::general_purpose::STANDARD.encode(bare))
    };
    let scripts = FILES.iter().filter(|file| file.name.ends_with(".js"));
    json!({ "imports": scripts.map(|file| (format!("regard/{}", file.name), json!(address(file.content)))).collect::<Map<_, _>>() })
}

/// The page of a text, as one HTML file.
///
/// # Errors
/// The reason, when the text is too long or the edits or the head do not fit the model.
pub fn standalone(model: &Model, text: &str, edits: &Edits, about: &About) -> Result<String, String> {
    let build = || -> ApiResult<String> {
        let (described, cancel) = (views::model(0, model), Cancel::new());
        let cached = CachedRun::make(0, model, RunOf::of_text(text, edits.clone()), Limits::of_this_machine(), &cancel, |_| ())?;
        let run = cached.view(&cancel);
        let (mut all, step) = responses(&run)?;
        let (name, version) = (described["name"].as_str().unwrap_or_default().to_owned(), env!("CARGO_PKG_VERSION"));
        all.insert("/api/models".to_owned(), json!({ "version": version, "models": [described] }));
        all.insert("/api/run".to_owned(), views::summary(&run)?);
        // Lines are drawn from single weights: a long text has its map alone.
        let views = [("heads", true), ("head", step == 1), ("map", true), ("lens", model.has_head())];
        let shown: Vec<&str> = views.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
        let head = about.head.map(|[layer, head]| json!({ "layer": layer, "head": head, "view": if step == 1 { "head" } else { "map" } }));
        let data = json!({
            "answers": all, "views": shown, "step": step, "edits": edits.canonical(), "text": text, "head": head,
            "title": title(about, &name, text), "note": about.note, "command": about.command, "date": about.date,
            "model": name, "version": version, "text_hash": sha256(text),
        });
        // No `<` in the data: it cannot end its element.
        let data = data.to_string().replace('<', "\\u003c");
        let style = FILES.iter().find(|file| file.name == "style.css").map_or("", |file| file.content);
        let policy = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:";
        Ok(INDEX
            .replace(
                "<link rel=\"stylesheet\" href=\"style.css\">",
                &format!(
                    "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<style>\n{style}</style>\n\
                     <script type=\"importmap\">{}</script>",
                    import_map()
                ),
            )
            .replace(
                "<script type=\"module\" src=\"main.js\"></script>",
                &format!(
                    "<script type=\"application/json\" id=\"frozen\">{data}</script>\n<script type=\"module\">import \
                        'regard/main.js';</script>"
                ),
            ))
    };
    build().map_err(|error| error.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_element() {
        let model = Model::built_in().expect("it is in the crate");
        let page = standalone(&model, "Emma and David", &Edits::default(), &About::default()).expect("letters that it knows");
        assert_eq!(page.matches("</script>").count(), 3, "the import map, the data and the start");
        assert!(!page.contains("from './") && !page.contains("href=\"style.css\""));
    }
}
