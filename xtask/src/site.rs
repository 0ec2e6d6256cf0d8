//! `cargo xtask site`: the page in a browser tab as a static folder, with the guides, the notebooks and the report.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use pulldown_cmark::{CowStr, Event, Options as Markdown, Parser, Tag, TagEnd, html};
use serde_json::Value;

use crate::command::{cargo, command, root, run, target_dir, text};
use crate::site_check;

/// The module of the tab, as gzip.
pub(crate) const WASM: &str = "regard_wasm.wasm.gz";
const TARGET: &str = "wasm32-unknown-unknown";
/// The list of all files, and the sign of a folder that this command wrote.
const FILES: &str = "files.json";
/// The worker that keeps the site, which is not in the list.
const OFFLINE: &str = "offline.js";
/// Nothing but this site, on the page's thread and in its workers.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; \
    style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'";
const STYLE: &str = "body{max-width:46rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}\
    pre{overflow-x:auto;padding:.7rem;background:#8881}code{font-size:.9em}table{border-collapse:collapse}\
    td,th{border:1px solid #8886;padding:.2rem .5rem;text-align:left}img{max-width:100%}:root{color-scheme:light dark}";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also test the folder in node and in Chromium: the same losses and text as the command, models dropped into the window,
    /// nothing from other machines
    #[arg(long)]
    check: bool,
    /// With --check: an existing command `regard` to compare with, instead of building one
    #[arg(long, value_name = "PATH")]
    regard: Option<PathBuf>,
    /// With --check: a GGUF file, or a llama2.c model with its tokenizer.bin beside it, to be dropped into the tab and timed; may be
    /// repeated [default: stories15M and SmolLM2 of target/models, downloaded once]
    #[arg(long, value_name = "PATH")]
    model: Vec<PathBuf>,
    /// With --check: test the folder as it is, without writing it again
    #[arg(long)]
    no_build: bool,
    /// The folder
    #[arg(long, default_value = "site", value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run_site(options: &Options) -> Result<()> {
    let folder = root().join(&options.out);
    if !options.no_build {
        build()?;
        let bytes = write_site(&folder)?;
        println!("{}: {:.1} MB; any web server can serve it", folder.display(), bytes as f64 / 1e6);
    }
    if options.check {
        site_check::check(&folder, options.regard.as_deref(), &options.model)?;
    }
    Ok(())
}

fn build() -> Result<()> {
    let installed = text(command("rustup", &["target", "list", "--installed"])).unwrap_or_default();
    if !installed.contains(TARGET) {
        run(command("rustup", &["target", "add", TARGET]))?;
    }
    run(cargo(&["build", "--quiet", "--release", "--target", TARGET, "--package", "regard-wasm"]))
}

/// A folder that is being written, with the names of its files.
struct Site {
    folder: PathBuf,
    files: Vec<String>,
}

impl Site {
    fn write(&mut self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.folder.join(name);
        let parent = path.parent().context("a file has a folder")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        self.files.push(name.to_owned());
        Ok(())
    }

    fn copy(&mut self, name: &str, from: &Path) -> Result<()> {
        self.write(name, fs::read(from).with_context(|| format!("cannot read {}", from.display()))?)
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = read.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Files and links below a folder, by their names in it.
fn names_below(folder: &Path, above: &str, found: &mut Vec<String>) -> Result<()> {
    for path in entries(folder)? {
        let own = format!("{above}{}", name(&path));
        if fs::symlink_metadata(&path)?.is_dir() {
            names_below(&path, &format!("{own}/"), found)?;
        } else {
            found.push(own);
        }
    }
    Ok(())
}

/// Removes an earlier site. A folder with anything that this command did not write is refused and left as it is.
fn remove_earlier(folder: &Path) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(folder) else { return Ok(()) };
    let list = || serde_json::from_slice::<Vec<String>>(&fs::read(folder.join(FILES)).ok()?).ok();
    let Some(written) = metadata.is_dir().then(list).flatten() else {
        bail!("not a folder of `cargo xtask site`: {}; choose another with --out", folder.display());
    };
    let mut names = Vec::new();
    names_below(folder, "", &mut names)?;
    let ours = |name: &String| written.contains(name) || [FILES, OFFLINE].contains(&name.as_str());
    if let Some(foreign) = names.iter().find(|name| !ours(name)) {
        bail!("not written by `cargo xtask site`: {}; move it away, or choose another folder with --out", folder.join(foreign).display());
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// Writes the site; the bytes of its files.
fn write_site(folder: &Path) -> Result<u64> {
    remove_earlier(folder)?;
    let mut site = Site { folder: folder.to_owned(), files: Vec::new() };
    let page = root().join("crates/regard-web/page");
    for path in entries(&page)? {
        if name(&path) != "index.html" {
            site.copy(&name(&path), &path)?;
        }
    }
    site.copy("worker.js", &root().join("crates/regard-wasm/page/worker.js"))?;
    // Compressed in the file: a plain server does not compress.
    let wasm = target_dir().join(TARGET).join("release/regard_wasm.wasm");
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&fs::read(&wasm).with_context(|| format!("cannot read {}", wasm.display()))?)?;
    site.write(WASM, packed.finish()?)?;

    let mut links = String::new();
    for (title, names) in [("Guides", guides(&mut site)?), ("Notebooks", notebooks(&mut site)?), ("Report", report(&mut site)?)] {
        let _ = match names.as_slice() {
            [] => Ok(()),
            [(only, _)] => write!(links, " <a href=\"{only}\">{title}</a>"),
            all => {
                let index: String = all.iter().map(|(file, title)| format!("<li><a href=\"../{file}\">{title}</a></li>")).collect();
                let file = format!("{}/index.html", title.to_lowercase());
                site.write(&file, document(title, &format!("<h1>{title}</h1><ul>{index}</ul>")))?;
                write!(links, " <a href=\"{file}\">{title}</a>")
            }
        };
    }
    let index = fs::read_to_string(page.join("index.html")).context("cannot read the page")?;
    let (head, links) = (
        format!("<meta name=\"regard-tab\" content=\"yes\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n</head>"),
        format!("<nav class=\"quiet\" aria-label=\"site\">{links}</nav>\n</body>"),
    );
    // Removed by the page's scripts; browsers do not run those of a folder.
    let starting = "<body>\n<p id=\"starting\" role=\"status\">Loading. If this stays, the folder was opened without a web server: run \
        <code>python3 -m http.server</code> in it and open the address that is printed.</p>";
    let index = index.replacen("</head>", &head, 1).replacen("<body>", starting, 1).replacen("</body>", &links, 1);
    site.write("index.html", index)?;

    let offline = fs::read_to_string(root().join("crates/regard-wasm/page/offline.js")).context("cannot read offline.js")?;
    let content: Vec<Vec<u8>> = site.files.iter().map(|file| fs::read(folder.join(file))).collect::<std::io::Result<_>>()?;
    site.write(OFFLINE, offline.replace("VERSION'", &format!("{:016x}'", fingerprint(&content))))?;
    site.files.push("./".to_owned());
    site.files.retain(|file| file != OFFLINE);
    let list = serde_json::to_string(&site.files)?;
    fs::write(folder.join(FILES), list).context("cannot write the list of files")?;
    Ok(content.iter().map(|bytes| bytes.len() as u64).sum())
}

/// FNV-1a over all files: another site has another cache.
fn fingerprint(content: &[Vec<u8>]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    content.iter().flatten().fold(0xcbf2_9ce4_8422_2325, step)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><style>{STYLE}</style></head>\n<body><p><a href=\"../index.html\">Regard</a></p>\n{body}\n</body></html>\n",
        escaped(title)
    )
}

/// A link of the repository as one of the site: guides are HTML, other files stay in the repository and lose their link.
fn link(url: &str) -> Option<String> {
    let (path, anchor) = url.split_once('#').map_or((url, String::new()), |(path, anchor)| (path, format!("#{anchor}")));
    if path.is_empty() || url.contains("://") {
        return Some(url.to_owned());
    }
    let file = path.rsplit('/').next().unwrap_or(path);
    let beside = root().join("docs").join(file).is_file() && (!path.contains('/') || path.starts_with("docs/"));
    match file.strip_suffix(".md") {
        Some(stem) if beside => Some(format!("{stem}.html{anchor}")),
        None if beside => Some(file.to_owned()),
        _ => None,
    }
}

fn slug(text: &str) -> String {
    let kept = text.to_lowercase().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect::<String>();
    kept.replace(' ', "-")
}

/// HTML of a guide, with anchors at its headings.
fn rendered(markdown: &str) -> String {
    let mut events: Vec<Event<'_>> = Parser::new_ext(markdown, Markdown::ENABLE_TABLES).collect();
    for at in 0..events.len() {
        if matches!(events[at], Event::Start(Tag::Heading { .. })) {
            let text: String = events[at..]
                .iter()
                .take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))))
                .filter_map(|event| if let Event::Text(text) | Event::Code(text) = event { Some(text.as_ref()) } else { None })
                .collect();
            if let Event::Start(Tag::Heading { id, .. }) = &mut events[at] {
                *id = Some(CowStr::from(slug(&text)));
            }
        }
    }
    // A link that leads out of the site is shown as text.
    let mut out = Vec::with_capacity(events.len());
    let mut dropped = false;
    for event in events {
        match event {
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => match link(&dest_url) {
                Some(url) => out.push(Event::Start(Tag::Link { link_type, dest_url: CowStr::from(url), title, id })),
                None => dropped = true,
            },
            Event::End(TagEnd::Link) if dropped => dropped = false,
            Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
                let url = dest_url.rsplit('/').next().unwrap_or_default().to_owned();
                out.push(Event::Start(Tag::Image { link_type, dest_url: CowStr::from(url), title, id }));
            }
            other => out.push(other),
        }
    }
    let mut text = String::new();
    html::push_html(&mut text, out.into_iter());
    text
}

fn title_of(markdown: &str) -> String {
    markdown.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("Regard").to_owned()
}

/// Guides as HTML, with their pictures: files and titles.
fn guides(site: &mut Site) -> Result<Vec<(String, String)>> {
    let mut made = Vec::new();
    for path in entries(&root().join("docs"))? {
        let file = name(&path);
        match file.strip_suffix(".md") {
            Some(stem) => {
                let markdown = fs::read_to_string(&path)?;
                let (to, title) = (format!("guides/{stem}.html"), title_of(&markdown));
                site.write(&to, document(&title, &rendered(&markdown)))?;
                made.push((to, escaped(&title)));
            }
            None if path.is_file() => site.copy(&format!("guides/{file}"), &path)?,
            None => {}
        }
    }
    Ok(made)
}

/// The text of a notebook's cell.
fn source(cell: &Value) -> String {
    match &cell["source"] {
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

fn notebooks(site: &mut Site) -> Result<Vec<(String, String)>> {
    let mut made = Vec::new();
    for path in entries(&root().join("notebooks"))?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "ipynb")) {
        let notebook: Value = serde_json::from_slice(&fs::read(&path)?).with_context(|| format!("{} is not JSON", path.display()))?;
        let cells = notebook["cells"].as_array().cloned().unwrap_or_default();
        let part = |cell: &Value| match cell["cell_type"].as_str() {
            Some("markdown") => rendered(&source(cell)),
            _ => format!("<pre><code>{}</code></pre>\n", escaped(&source(cell))),
        };
        let title = cells.first().map_or_else(String::new, |cell| title_of(&source(cell)));
        let file = name(&path);
        let (to, body) = (format!("notebooks/{}.html", file.trim_end_matches(".ipynb")), cells.iter().map(part).collect::<String>());
        let download = format!("<p><a href=\"{file}\" download>{file}</a></p>");
        site.copy(&format!("notebooks/{file}"), &path)?;
        site.write(&to, document(&title, &format!("{body}{download}")))?;
        made.push((to, escaped(&title)));
    }
    Ok(made)
}

/// The report, where one was made.
fn report(site: &mut Site) -> Result<Vec<(String, String)>> {
    let from = root().join("report");
    if !from.join("index.html").is_file() {
        crate::steps::skipped("the report", "report/ does not exist; `cargo run --release -- report` writes it");
        return Ok(Vec::new());
    }
    let mut folders = vec![from.clone()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else {
                let relative = path.strip_prefix(&from).context("it is below the report")?;
                site.copy(&format!("report/{}", relative.display()), &path)?;
            }
        }
    }
    Ok(vec![("report/index.html".to_owned(), "Report".to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_of_this_command_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("site");
        remove_earlier(&folder).expect("there is nothing");
        fs::create_dir_all(folder.join("guides")).expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
        write("guides/a.html", "");
        remove_earlier(&folder).expect_err("no list");
        write(FILES, "{\"name\": \"another project\"}");
        remove_earlier(&folder).expect_err("another list");
        write(FILES, "[\"./\", \"guides/a.html\"]");
        write(OFFLINE, "");
        write("guides/notes.txt", "mine");
        let error = remove_earlier(&folder).expect_err("a foreign file").to_string();
        assert!(error.contains("notes.txt") && folder.join("guides/a.html").exists(), "{error}");
        fs::rename(folder.join("guides/notes.txt"), dir.path().join("notes.txt")).expect("moved");
        remove_earlier(&folder).expect("only what was written");
        assert!(!folder.exists() && dir.path().join("notes.txt").exists());
    }

    #[test]
    fn links_stay_inside_the_site() {
        assert_eq!(link("glossary.md#a").as_deref(), Some("glossary.html#a"));
        assert_eq!(link("#here").as_deref(), Some("#here"));
        assert_eq!(link("../ARCHITECTURE.md"), None);
        assert_eq!(link("page.png").as_deref(), Some("page.png"));
        let html = rendered("# A *b* `c`\n\n[x](../README.md) [y](rust.md)\n");
        assert!(html.contains("<h1 id=\"a-b-c\">") && html.contains("<a href=\"rust.html\">y</a>"), "{html}");
        assert!(html.contains("<p>x <a"), "{html}");
    }
}
