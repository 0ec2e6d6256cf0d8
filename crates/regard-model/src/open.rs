//! From a path to a model: which files are there, and what they are.

use crate::disk;
use crate::error::{Error, Result};
use crate::families::{self, Architecture, llama, whisper};
use crate::formats::{Archive, Gguf, Llama2c, Pickle, SafetensorsFiles, TensorInfo, missing};
use crate::front::Front;
use crate::front::image::Pixels;
use crate::hub::Hub;
use crate::model::{Pooling, TrainedOn};
use crate::settings::Settings;
use crate::tokens::Tokenizer;
use regard_nn::ModelConfig;
use regard_nn::models::transformer::Transformer;
use regard_nn::tensors::{Layout, SafetensorsFile, Source, Tensor};
use regard_nn::training::folder::{MODEL, Trained};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// What was found at a path.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) format: &'static str,
    pub(crate) archive: Arc<dyn Archive>,
    pub(crate) architecture: Architecture,
    /// Or why there is none.
    pub(crate) tokenizer: Arc<std::result::Result<Tokenizer, String>>,
    /// Tokens that end a text.
    pub(crate) eos_ids: Vec<u32>,
    pub(crate) pooling: Option<Pooling>,
    pub(crate) trained: Option<TrainedOn>,
}

/// A model that `regard train` wrote: its parameters under their own names.
#[derive(Debug)]
struct Ours {
    layout: Layout,
    params: Vec<f32>,
}

impl Source for Ours {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        let entry = self.layout.entries().iter().find(|entry| entry.name == name).ok_or_else(|| missing(name))?;
        let buffer = &self.params[entry.range.clone()];
        Ok(Tensor { shape: entry.shape.clone(), numbers: <f32 as regard_nn::Float>::numbers(buffer) })
    }
}

impl Archive for Ours {
    fn has(&self, name: &str) -> bool {
        self.layout.entries().iter().any(|entry| entry.name == name)
    }

    fn list(&self) -> Vec<TensorInfo> {
        let info = |entry: &regard_nn::tensors::layout::Entry| TensorInfo {
            name: entry.name.clone(),
            shape: entry.shape.clone(),
            kind: "f32",
            bytes: 4 * entry.range.len(),
        };
        self.layout.entries().iter().map(info).collect()
    }

    fn files(&self) -> Vec<&regard::MappedFile> {
        Vec::new()
    }
}

/// Whatever is at a path, or under a name in the local Hugging Face cache.
pub(crate) fn open(path: &Path) -> Result<Opened> {
    if disk::is_dir(path) {
        return folder(path);
    }
    if disk::is_file(path) {
        return file(path);
    }
    match Hub::from_env().and_then(|hub| hub.cached(path)) {
        Some(found) => folder(&found),
        None => {
            let reason =
                "there is no such file or folder, and no model of that name in the local Hugging Face cache; nothing is downloaded without \
                          being told: `hf download NAME` or `regard inspect NAME --download` puts one there"
                    .to_owned();
            Err(Error::NoModel { path: path.to_owned(), reason })
        }
    }
}

fn file(path: &Path) -> Result<Opened> {
    let start = disk::start(path, 64)?;
    if start.starts_with(b"GGUF") || path.extension().is_some_and(|e| e == "gguf") {
        return gguf(path);
    }
    let beside = path.parent().filter(|parent| disk::is_file(&parent.join("config.json")));
    if path.extension().is_some_and(|e| e == "safetensors") {
        return match beside {
            Some(parent) => transformers(parent, "safetensors", Arc::new(SafetensorsFiles::open(path)?)),
            None => folder(path.parent().unwrap_or(Path::new("."))),
        };
    }
    if Pickle::sniff(&start) {
        let archive = Arc::new(Pickle::open(path)?);
        return match beside {
            Some(parent) => transformers(parent, "pickle", archive),
            None => match families::of_names(&*archive)? {
                Some(architecture) => openai(path, archive, architecture),
                None => {
                    let reason = "it has tensors, but no config.json beside it says which model they are: put the model's there".to_owned();
                    Err(Error::NoModel { path: path.to_owned(), reason })
                }
            },
        };
    }
    if Llama2c::sniff(&start) {
        return llama2c(path);
    }
    let reason = "it is neither GGUF, safetensors, a PyTorch file nor llama2.c's: a folder with config.json can be given too".to_owned();
    Err(Error::NoModel { path: path.to_owned(), reason })
}

fn folder(folder: &Path) -> Result<Opened> {
    if disk::is_file(&folder.join("config.json")) {
        let (format, archive) = weights(folder)?;
        return transformers(folder, format, archive);
    }
    if disk::is_file(&folder.join(MODEL)) {
        return ours(folder);
    }
    let files = disk::list(folder).map_err(|source| Error::file(folder, source))?;
    let with = |extension: &str| files.iter().filter(|path| path.extension().is_some_and(|e| e == extension)).collect::<Vec<_>>();
    let (ggufs, mut bins) = (with("gguf"), with("bin"));
    bins.retain(|path| path.file_name().is_none_or(|name| name != "tokenizer.bin"));
    match (ggufs.as_slice(), bins.as_slice()) {
        ([one], _) => file(one),
        ([], [one]) => file(one),
        ([], []) => {
            let reason = format!("it has no config.json, no *.gguf, no *.bin and no {MODEL} of `regard train`");
            Err(Error::NoModel { path: folder.to_owned(), reason })
        }
        _ => Err(Error::NoModel { path: folder.to_owned(), reason: "it has several models: name one of its files".to_owned() }),
    }
}

/// The weights of a folder of transformers.
fn weights(folder: &Path) -> Result<(&'static str, Arc<dyn Archive>)> {
    let file = |name: &str| Some(folder.join(name)).filter(|path| disk::is_file(path));
    if let Some(index) = file("model.safetensors.index.json") {
        return Ok(("safetensors", Arc::new(SafetensorsFiles::open_index(&index)?)));
    }
    if let Some(path) = file("model.safetensors") {
        return Ok(("safetensors", Arc::new(SafetensorsFiles::open(&path)?)));
    }
    if let Some(path) = file("pytorch_model.bin") {
        return Ok(("pickle", Arc::new(Pickle::open(&path)?)));
    }
    let reason = if disk::is_file(&folder.join("pytorch_model.bin.index.json")) {
        "its weights are several pickles: save them with safetensors (`model.save_pretrained(folder)`)"
    } else {
        "it has a config.json, but no model.safetensors, model.safetensors.index.json or pytorch_model.bin"
    };
    Err(Error::NoModel { path: folder.to_owned(), reason: reason.to_owned() })
}

/// Reason instead of an error: a model without a tokenizer can be run with ids.
fn optional(tokenizer: Result<Tokenizer>) -> std::result::Result<Tokenizer, String> {
    tokenizer.map_err(|error| if let Error::NoTokenizer { reason } = error { reason } else { error.to_string() })
}

fn transformers(folder: &Path, format: &'static str, archive: Arc<dyn Archive>) -> Result<Opened> {
    let config = disk::json(&folder.join("config.json"))?;
    let generation = disk::json_if_there(&folder.join("generation_config.json"))?;
    let mut architecture = families::of_settings(Settings(&config), Settings(&generation), &*archive)?;
    let preprocessor = folder.join("preprocessor_config.json");
    if matches!(architecture.front, Some(Front::Image { .. })) && disk::is_file(&preprocessor) {
        architecture.pixels = Pixels::of_settings(&disk::json(&preprocessor)?)?;
    }
    let tokenizer = Arc::new(optional(Tokenizer::of_folder(folder, &architecture.family)));
    let ids = |value: &Value| -> Vec<u32> {
        let all = value.as_u64().into_iter().chain(value.as_array().into_iter().flatten().filter_map(Value::as_u64));
        all.filter_map(|id| u32::try_from(id).ok()).collect()
    };
    let told = [&generation["eos_token_id"], &config["eos_token_id"]].map(ids).into_iter().find(|ids| !ids.is_empty());
    let eos_ids = told.unwrap_or_else(|| (*tokenizer).as_ref().map_or(Vec::new(), |tokenizer| tokenizer.eos_ids().to_vec()));
    Ok(Opened { format, archive, architecture, tokenizer, eos_ids, pooling: Pooling::of_folder(folder)?, trained: None })
}

/// OpenAI's Whisper: the tokens are in a file beside it.
fn openai(path: &Path, archive: Arc<dyn Archive>, architecture: Architecture) -> Result<Opened> {
    let beside = |name: &str| Some(path.with_file_name(name)).filter(|path| disk::is_file(path));
    let name = whisper::tokens_file(&architecture);
    let tokenizer = match (beside("tokenizer.json"), beside(name)) {
        (Some(_), _) => optional(Tokenizer::of_folder(path.parent().unwrap_or(Path::new(".")), "whisper")),
        (None, Some(tokens)) => optional(Tokenizer::of_tiktoken(&tokens, &whisper::special_tokens(&architecture))),
        (None, None) => Err(format!("there is no {name} (of the package openai-whisper) or tokenizer.json beside {}", path.display())),
    };
    let (tokenizer, eos_ids) = (Arc::new(tokenizer), architecture.writing.ends.clone());
    Ok(Opened { format: "pickle", archive, architecture, tokenizer, eos_ids, pooling: None, trained: None })
}

fn gguf(path: &Path) -> Result<Opened> {
    let file = Gguf::open(path)?;
    let architecture = families::of_gguf(&file)?;
    let tokenizer = Arc::new(optional(Tokenizer::of_gguf(&file)));
    let eos_ids = (*tokenizer).as_ref().map_or(Vec::new(), |tokenizer| tokenizer.eos_ids().to_vec());
    Ok(Opened { format: "gguf", archive: Arc::new(file), architecture, tokenizer, eos_ids, pooling: None, trained: None })
}

fn llama2c(path: &Path) -> Result<Opened> {
    let file = Llama2c::open(path)?;
    let architecture = llama::of_header(file.header())?;
    let beside = path.with_file_name("tokenizer.bin");
    let tokenizer = if disk::is_file(&beside) {
        optional(Tokenizer::of_llama2c(&beside, file.header().vocab))
    } else {
        Err(format!("there is no tokenizer.bin beside {}", path.display()))
    };
    Ok(Opened {
        format: "llama2.c",
        archive: Arc::new(file),
        architecture,
        tokenizer: Arc::new(tokenizer),
        eos_ids: vec![2],
        pooling: None,
        trained: None,
    })
}

fn ours(folder: &Path) -> Result<Opened> {
    let Trained { model, params, tokenizer, origin, step, verified } = Trained::read(folder)?;
    let opened = of_config(model.config(), params, tokenizer)?;
    Ok(Opened { trained: Some(TrainedOn { origin, step, verified }), ..opened })
}

/// A model that `regard train` made.
fn of_config(config: &ModelConfig, params: Vec<f32>, tokenizer: regard_nn::tokenizer::Tokenizer) -> Result<Opened> {
    let architecture = Architecture::decoder("regard", config.parts(), &[], &[""], config.context);
    let layout = Transformer::new(&architecture.parts).layout().clone();
    let archive = Arc::new(Ours { layout, params });
    let tokenizer = Arc::new(Ok(Tokenizer::ours(tokenizer)?));
    Ok(Opened { format: "regard", archive, architecture, tokenizer, eos_ids: Vec::new(), pooling: None, trained: None })
}

/// The model inside the crate: `examples/default_model.rs` says how it was made.
pub(crate) fn built_in() -> Result<Opened> {
    let path = Path::new(crate::Model::BUILT_IN);
    let config: ModelConfig = serde_json::from_slice(include_bytes!("default/config.json")).map_err(|e| Error::damaged(path, e))?;
    let file = SafetensorsFile::new(path, include_bytes!("default/model.safetensors").as_slice())?;
    let layout = Transformer::new(&config.parts()).layout().clone();
    let mut params = vec![0f32; layout.len()];
    for entry in layout.entries() {
        let tensor = file.tensor(&entry.name)?;
        if tensor.numbers.len() != entry.range.len() {
            return Err(Error::damaged(path, format!("its tensor {} has another size", entry.name)));
        }
        tensor.numbers.widen(0..entry.range.len(), &mut params[entry.range.clone()]);
    }
    let tokenizer = regard_nn::tokenizer::Tokenizer::from_bytes(path, include_bytes!("default/tokenizer.json"))?;
    of_config(&config, params, tokenizer)
}
