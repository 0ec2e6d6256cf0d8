//! The page's files, in the program.

/// Name, kind, content.
pub(crate) struct File {
    pub(crate) name: &'static str,
    #[cfg_attr(not(feature = "server"), expect(dead_code, reason = "the server's content type"))]
    pub(crate) kind: &'static str,
    pub(crate) content: &'static str,
}

pub(crate) const INDEX: &str = include_str!("../page/index.html");

macro_rules! files {
    ($($name:literal: $kind:literal),* $(,)?) => {
        /// Everything but the index; scripts in the order in which each needs those before it.
        pub(crate) const FILES: &[File] = &[$(File { name: $name, kind: $kind, content: include_str!(concat!("../page/", $name)) }),*];
    };
}

files! {
    "style.css": "text/css",
    "base.js": "text/javascript",
    "colour.js": "text/javascript",
    "tab.js": "text/javascript",
    "api.js": "text/javascript",
    "state.js": "text/javascript",
    "draw.js": "text/javascript",
    "export.js": "text/javascript",
    "text.js": "text/javascript",
    "heads.js": "text/javascript",
    "head.js": "text/javascript",
    "map.js": "text/javascript",
    "neuron.js": "text/javascript",
    "lens.js": "text/javascript",
    "lesson.js": "text/javascript",
    "surgery.js": "text/javascript",
    "main.js": "text/javascript",
}
