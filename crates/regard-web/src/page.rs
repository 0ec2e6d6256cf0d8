//! The page's files, in the program.

use std::borrow::Cow;
use std::path::Path;

/// Name, kind, content.
pub(crate) struct File {
    pub(crate) name: &'static str,
    #[cfg_attr(not(feature = "server"), expect(dead_code, reason = "the server's content type"))]
    pub(crate) kind: &'static str,
    pub(crate) content: &'static str,
}

/// A file's content. In builds for debugging `REGARD_PAGE` names a folder that files are read from at every request: scripts are edited
/// without compiling.
pub(crate) fn content(name: &str, built_in: &'static str) -> Cow<'static, str> {
    let folder = if cfg!(debug_assertions) { std::env::var_os("REGARD_PAGE") } else { None };
    let read = folder.and_then(|folder| std::fs::read_to_string(Path::new(&folder).join(name)).ok());
    read.map_or(Cow::Borrowed(built_in), Cow::Owned)
}

pub(crate) const INDEX: &str = include_str!("../page/index.html");

macro_rules! files {
    ($($name:literal: $kind:literal),* $(,)?) => {
        /// Everything but the index.
        pub(crate) const FILES: &[File] = &[$(File { name: $name, kind: $kind, content: include_str!(concat!("../page/", $name)) }),*];
    };
}

files! {
    "style.css": "text/css",
    "base.js": "text/javascript",
    "terms.js": "text/javascript",
    "colour.js": "text/javascript",
    "tab.js": "text/javascript",
    "api.js": "text/javascript",
    "busy.js": "text/javascript",
    "state.js": "text/javascript",
    "draw.js": "text/javascript",
    "export.js": "text/javascript",
    "text.js": "text/javascript",
    "words.js": "text/javascript",
    "next.js": "text/javascript",
    "find.js": "text/javascript",
    "reads.js": "text/javascript",
    "fitting.js": "text/javascript",
    "tour.js": "text/javascript",
    "labels.js": "text/javascript",
    "command.js": "text/javascript",
    "outcome.js": "text/javascript",
    "surgery.js": "text/javascript",
    "preview.js": "text/javascript",
    "runner.js": "text/javascript",
    "controls.js": "text/javascript",
    "keyboard.js": "text/javascript",
    "heads_drawn.js": "text/javascript",
    "compare.js": "text/javascript",
    "examples.js": "text/javascript",
    "lesson_trail.js": "text/javascript",
    "heads.js": "text/javascript",
    "head.js": "text/javascript",
    "map.js": "text/javascript",
    "map_names.js": "text/javascript",
    "map_tiles.js": "text/javascript",
    "neuron.js": "text/javascript",
    "lens.js": "text/javascript",
    "lesson_parts.js": "text/javascript",
    "lesson_pictures.js": "text/javascript",
    "lesson_scale.js": "text/javascript",
    "lesson_scores.js": "text/javascript",
    "lesson_outputs.js": "text/javascript",
    "empty.js": "text/javascript",
    "lost.js": "text/javascript",
    "about.js": "text/javascript",
    "lesson.js": "text/javascript",
    "main.js": "text/javascript",
}
