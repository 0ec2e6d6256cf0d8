//! Models from the Hugging Face hub, into its cache on this machine: only on request, and only in a program that was built with the
//! feature `hub`. Nothing else in this crate opens a connection.

use crate::error::{Error, Result};
use regard_files::limits::STATE_BYTES;
use std::path::{Path, PathBuf};

/// Where models are asked for, and where they are kept.
#[derive(Debug, Clone)]
pub struct Hub {
    /// The address of the hub; its own where none is given.
    pub endpoint: Option<String>,
    /// The folder that Hugging Face's tools call the hub cache.
    pub cache: PathBuf,
}

/// `org/model` in two; nothing else is a name.
fn parts(name: &Path) -> Option<(&str, &str)> {
    let (owner, model) = name.to_str()?.split_once('/')?;
    let plain = |part: &str| !part.is_empty() && !part.contains(['/', '\\']) && part != "." && part != "..";
    (plain(owner) && plain(model)).then_some((owner, model))
}

impl Hub {
    /// As Hugging Face's tools find it: `HF_ENDPOINT`; `HF_HUB_CACHE`, or `hub` in `HF_HOME` or in `~/.cache/huggingface`.
    pub fn from_env() -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let home = || variable("HOME").map(|home| home.join(".cache/huggingface"));
        let cache = variable("HF_HUB_CACHE").or_else(|| variable("HF_HOME").or_else(home).map(|home| home.join("hub")))?;
        Some(Self { endpoint: std::env::var("HF_ENDPOINT").ok(), cache })
    }

    /// `org/model` where it is in the cache: the snapshot of its main branch.
    pub fn cached(&self, name: &Path) -> Option<PathBuf> {
        let (owner, model) = parts(name)?;
        let folder = self.cache.join(format!("models--{owner}--{model}"));
        let main = regard_files::read_text(&folder.join("refs/main"), STATE_BYTES.max).ok()?;
        Some(folder.join("snapshots").join(main.trim())).filter(|snapshot| snapshot.is_dir())
    }

    /// Download the files of `org/model` that a loader reads, into the cache; `say` gets the name of each file before its download.
    ///
    /// # Errors
    /// [`Error::NoModel`], also in a program that was built without the feature `hub`.
    pub fn download(&self, name: &Path, say: impl FnMut(&str)) -> Result<PathBuf> {
        let refused = |reason: String| Error::NoModel { path: name.to_owned(), reason };
        if parts(name).is_none() {
            return Err(refused("only a name like org/model can be downloaded".to_owned()));
        }
        self.fetch(name, say).map_err(refused)?;
        self.cached(name).ok_or_else(|| refused("it was downloaded, but is not in the cache".to_owned()))
    }

    #[cfg(not(feature = "hub"))]
    fn fetch(&self, name: &Path, _say: impl FnMut(&str)) -> std::result::Result<(), String> {
        let name = name.display();
        Err(format!(
            "this program was built without downloads: `hf download {name}` puts it into the cache, and so does a program that was built \
                with `--features hub`"
        ))
    }

    #[cfg(feature = "hub")]
    fn fetch(&self, name: &Path, mut say: impl FnMut(&str)) -> std::result::Result<(), String> {
        use hf_hub::api::sync::ApiBuilder;
        let mut builder = ApiBuilder::from_cache(hf_hub::Cache::new(self.cache.clone())).with_progress(false);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let said = |what: &str, e: hf_hub::api::sync::ApiError| format!("{what} could not be downloaded ({e})").replace('\n', " ");
        let api = builder.build().map_err(|e| said("it", e))?;
        let repository = api.model(name.display().to_string());
        let files: Vec<String> =
            repository.info().map_err(|e| said("its list of files", e))?.siblings.into_iter().map(|s| s.rfilename).collect();
        let wanted = wanted(&files);
        if wanted.is_empty() {
            return Err("it has no config.json with weights, and not one GGUF file".to_owned());
        }
        for file in wanted {
            say(file);
            repository.get(file).map_err(|e| said(file, e))?;
        }
        Ok(())
    }
}

/// Of the files of a model those that a loader reads: weights in one format, settings, tokenizer.
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
fn wanted(files: &[String]) -> Vec<&str> {
    let has = |name: &str| files.iter().any(|file| file == name);
    let shard = |file: &str| file.starts_with("model-") && file.ends_with(".safetensors");
    let weights: Vec<&str> = if has("model.safetensors.index.json") {
        files.iter().map(String::as_str).filter(|file| shard(file) || *file == "model.safetensors.index.json").collect()
    } else {
        ["model.safetensors", "pytorch_model.bin"].into_iter().find(|name| has(name)).into_iter().collect()
    };
    if has("config.json") && !weights.is_empty() {
        let beside = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];
        let beside = beside.into_iter().chain(["vocab.txt", "vocab.json", "merges.txt", "modules.json", "1_Pooling/config.json"]);
        return beside.filter(|name| has(name)).chain(weights).collect();
    }
    let ggufs: Vec<&str> = files.iter().map(String::as_str).filter(|file| file.ends_with(".gguf")).collect();
    if ggufs.len() == 1 { ggufs } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_loader_reads_is_asked_for() {
        let files = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let both = files(&["README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "onnx/model.onnx"]);
        assert_eq!(wanted(&both), ["config.json", "tokenizer.json", "model.safetensors"]);
        let shards =
            files(&["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]);
        assert_eq!(wanted(&shards).len(), 4);
        assert_eq!(wanted(&files(&["a.Q4_0.gguf", "README.md"])), ["a.Q4_0.gguf"]);
        assert!(wanted(&files(&["a.gguf", "b.gguf"])).is_empty(), "which one?");
        assert!(wanted(&files(&["config.json", "weights.h5"])).is_empty());
    }

    #[test]
    fn a_name_is_two_words() {
        assert_eq!(parts(Path::new("org/model")), Some(("org", "model")));
        for other in ["model", "/model", "org/", "a/b/c", "../x", "org/.."] {
            assert_eq!(parts(Path::new(other)), None, "{other}");
        }
    }
}
