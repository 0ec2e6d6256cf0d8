//! The microscope: `inspect`, `tokens`, `look`, `classify`, `lens`, `surgery`, `screen`, `patch`.

use crate::common::{Common, Out, Outcome, Unusable, figure_files, table_files, write_files};
use crate::output::{note, print};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use regard_lab::experiments::Progress;
use regard_lab::figure::{Axis, BarPlot, Figure, HeatPlot};
use regard_lab::{Folder, Table};
use regard_model::{Edits, Input, Model, Run, Screened, Sources};
use std::path::{Path, PathBuf};

const ABOUT_MODEL: &str = "A model: a file (GGUF, safetensors, llama2.c's .bin, PyTorch's .bin), a folder, or a name in the local Hugging Face cache [default: the small model that comes with regard]";

/// Real models under the microscope.
#[derive(Subcommand)]
pub(crate) enum Microscope {
    Inspect(Inspect),
    Tokens(Tokens),
    Look(Look),
    Classify(Classify),
    Lens(Lens),
    Surgery(Surgery),
    Screen(Screen),
    Patch(Patch),
}

impl Microscope {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Inspect(command) => command.run(),
            Self::Tokens(command) => command.run(),
            Self::Look(command) => command.run(),
            Self::Classify(command) => command.run(),
            Self::Lens(command) => command.run(),
            Self::Surgery(command) => command.run(),
            Self::Screen(command) => command.run(),
            Self::Patch(command) => command.run(),
        }
    }
}

fn load(path: Option<&Path>) -> Result<Model> {
    Ok(path.map_or_else(Model::built_in, Model::load)?)
}

/// Which texts a model is judged on.
#[derive(Args, Debug, Clone)]
struct Texts {
    /// A text; may be given several times
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// A file with a text; may be given several times
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Stories of our own where no text is given: how many
    #[arg(long, default_value_t = 16, value_name = "N")]
    texts: usize,
    /// Tokens of each text, at most
    #[arg(long, default_value_t = 256, value_name = "N")]
    tokens: usize,
}

impl Texts {
    fn ids(&self, model: &Model) -> Result<Vec<Vec<u32>>> {
        let mut texts = self.text.clone();
        for path in &self.file {
            let text = std::fs::read_to_string(path).map_err(|e| Unusable(format!("cannot read {}: {e}", path.display())))?;
            texts.push(text);
        }
        if texts.is_empty() {
            return Ok(model.own_texts(self.texts.max(1), self.tokens)?);
        }
        Ok(model.cut_texts(&texts.iter().map(String::as_str).collect::<Vec<_>>(), self.tokens)?)
    }
}

/// What an edit needs from other texts: for `mean` and `resample` stories that are not judged.
fn sources(model: &Model, edits: &Edits) -> Result<Sources> {
    let mut sources = Sources::default();
    if edits.needs_reference() {
        sources.reference = Some(model.reference(&model.own_texts(32, 256)?.split_off(16))?);
    }
    Ok(sources)
}

/// What a model's files say: family, shape, tensors
///
/// Nothing is run. Tensors are listed with --tensors.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard inspect\n  regard inspect SmolLM2-135M.Q4_1.gguf --tensors --json")]
pub(crate) struct Inspect {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    #[command(flatten)]
    common: Common,
}

impl Inspect {
    fn run(self) -> Result<Outcome> {
        let _bar = self.common.start("inspect")?;
        let (model, mut tables) = (load(self.model.as_deref())?, Vec::new());
        let mut table = Table::new("model", "What the files of the model say.", &[("what", "what"), ("value", "value")]);
        let (shape, attention) = (model.shape(), model.attention());
        let tokenizer = model.tokenizer().map_or_else(|e| e.to_string(), |t| format!("{} tokens", t.vocab()));
        for (what, value) in [
            ("model", model.path().display().to_string()),
            ("format", model.format().to_owned()),
            ("family", model.family().to_owned()),
            ("parameters", model.parameters().to_string()),
            ("layers", shape.layers.to_string()),
            ("query heads", shape.heads.to_string()),
            ("key and value heads", shape.kv_heads.to_string()),
            ("width of a head", model.head_dim().to_string()),
            ("width", model.width().to_string()),
            ("vocabulary", model.vocab().to_string()),
            ("context", model.context().to_string()),
            ("reads", if model.is_causal() { "forwards" } else { "in both directions" }.to_owned()),
            ("rotary base", attention.rotary.map_or("none".to_owned(), |rotary| rotary.base.to_string())),
            ("predicts tokens", model.has_head().to_string()),
            ("tokenizer", tokenizer),
        ] {
            table.push(vec![what.into(), value.into()]);
        }
        tables.push(table);
        if self.tensors {
            let columns = [("name", "tensor"), ("shape", "shape"), ("kind", "numbers"), ("bytes", "bytes")];
            let mut list = Table::new("tensors", "Its tensors.", &columns);
            for tensor in model.tensors() {
                list.push(vec![tensor.name.into(), format!("{:?}", tensor.shape).into(), tensor.kind.into(), tensor.bytes.into()]);
            }
            tables.push(list);
        }
        self.common.show(&tables)?;
        Ok(Outcome::Done)
    }
}

/// The tokens of a text: number, piece, bytes, and who added it
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard tokens --text \"Emma and David\"\n  regard tokens stories15M/model.bin --text \"caf\u{e9}\"")]
pub(crate) struct Tokens {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text
    #[arg(long, value_name = "TEXT", default_value = "Emma and David went to the market.")]
    text: String,
    #[command(flatten)]
    common: Common,
}

impl Tokens {
    fn run(self) -> Result<Outcome> {
        let _bar = self.common.start("tokens")?;
        let model = load(self.model.as_deref())?;
        let columns =
            [("number", "number"), ("id", "id"), ("piece", "piece"), ("first_byte", "from byte"), ("last_byte", "up to"), ("from", "from")];
        let mut table = Table::new("tokens", "The tokens of the text; bytes are counted from 0.", &columns);
        for (number, token) in model.tokens(&self.text)?.into_iter().enumerate() {
            let from = if token.added { "the tokenizer" } else { "the text" };
            let piece = format!("{:?}", model.piece(token.id));
            table.push(vec![
                number.into(),
                (token.id as usize).into(),
                piece.into(),
                token.bytes.start.into(),
                token.bytes.end.into(),
                from.into(),
            ]);
        }
        self.common.show(&[table])?;
        Ok(Outcome::Done)
    }
}

/// Look at every head of a model on a text: statistics, and pictures of all heads or of one
///
/// Statistics are collected in one pass, in memory that grows with the text and not with its square; weights come from the kernel that made the output.
/// The first token often takes most of the weight and hides the rest: --sink hide leaves it out of the pictures, --sink renormalise divides by what
/// remains.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard look
  regard look SmolLM2-135M.Q4_1.gguf --text \"The cat sat on the mat because it was tired\" --sink hide
  regard look model.bin --layer 3 --head 1 --edits scale=off
  regard look --html look.html")]
pub(crate) struct Look {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text [default: the beginning of a story]
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// A file with the text
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Edits, as in L3.H1=zero/scale=off
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    /// Draw this layer's head alone, with tokens (needs --head)
    #[arg(long, requires = "head", value_name = "N")]
    layer: Option<usize>,
    /// Which head
    #[arg(long, requires = "layer", value_name = "N")]
    head: Option<usize>,
    /// The first token in pictures: show, hide or renormalise
    #[arg(long, default_value = "show", value_parser = ["show", "hide", "renormalise"], value_name = "HOW")]
    sink: String,
    /// Write the page of `regard serve` with this text's data into one file, which opens from the disk
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// Cells of a side of a picture.
const CELLS: usize = 256;
const SMALL: usize = 48;

impl Look {
    fn cells(&self, run: &Run<'_>, layer: usize, head: usize, most: usize) -> Result<(usize, Vec<f64>)> {
        let map = run.heat_map(layer, head, most, most)?.mean;
        let n = map.dim().2;
        let mut cells: Vec<f64> = map.iter().map(|x| f64::from(*x)).collect();
        // Where cells are single tokens, the first column is the first token.
        if self.sink != "show" && n == run.len() {
            for (row, cells) in cells.chunks_mut(n).enumerate().skip(1) {
                let rest = 1.0 - cells[0];
                cells[0] = 0.0;
                if self.sink == "renormalise" && rest > 1e-6 {
                    cells[..=row].iter_mut().for_each(|x| *x /= rest);
                }
            }
        }
        Ok((n, cells))
    }

    fn run(self) -> Result<Outcome> {
        let bar = self.common.start("look")?;
        let model = load(self.model.as_deref())?;
        let text = match (&self.text, &self.file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(path)) => {
                Some(std::fs::read_to_string(path).map_err(|e| Unusable(format!("cannot read {}: {e}", path.display())))?)
            }
            (None, None) => None,
        };
        let ids = match &text {
            Some(text) => model.ids(Input::Text(text))?,
            None => model.own_texts(1, 48)?.swap_remove(0),
        };
        let edits = Edits::parse(&self.edits)?;
        if let Some(warning) = model.warning(ids.len()) {
            bar.warn(&warning);
        }
        let run = model.run(&ids, &edits, &sources(&model, &edits)?)?;
        let shape = model.shape();
        let columns = [
            ("layer", "layer"),
            ("head", "head"),
            ("entropy", "entropy (nats)"),
            ("max_weight", "largest weight"),
            ("own", "own token"),
            ("previous", "previous token"),
            ("first", "first token"),
            ("local", "within 3"),
            ("distance", "mean distance"),
        ];
        let caption = format!("Means over the rows of each head, on {} tokens.{}", ids.len(), said(&edits));
        let mut table = Table::new("look", &caption, &columns);
        bar.expect(shape.layers as u64);
        for layer in 0..shape.layers {
            let heads = run.layer_statistics(layer, regard::StatsOptions::default())?.0.heads();
            for head in 0..shape.heads {
                let at = [0, head];
                table.push(vec![
                    layer.into(),
                    head.into(),
                    heads.entropy[at].into(),
                    heads.max_weight[at].into(),
                    heads.diagonal_mass[at].into(),
                    heads.previous_token_mass[at].into(),
                    heads.first_token_mass[at].into(),
                    heads.local_mass[at].into(),
                    heads.mean_distance[at].into(),
                ]);
            }
            bar.advance(1);
        }
        let sink = match self.sink.as_str() {
            "hide" => " The first token is left out.",
            "renormalise" => " The first token is left out, and the rest divided by what remains.",
            _ => "",
        };
        let figure = match (self.layer, self.head) {
            (Some(layer), Some(head)) => {
                let (n, cells) = self.cells(&run, layer, head, CELLS)?;
                let mut plot = HeatPlot::new("", n, n, cells)?.value_title("weight");
                if n == ids.len() && n <= 64 {
                    let pieces: Vec<String> = ids.iter().map(|id| model.piece(*id).replace('\n', "\u{21b5}")).collect();
                    plot = plot.tokens(&pieces, &pieces)?;
                } else if n < ids.len() {
                    plot = plot.pooled(ids.len(), ids.len());
                }
                let title = format!("Layer {layer}, head {head}: who looks at whom");
                Figure::new(format!("head_{layer}_{head}"), title).panel(plot)
            }
            _ => {
                let mut maps = Vec::new();
                for layer in 0..shape.layers {
                    for head in 0..shape.heads {
                        let (n, cells) = self.cells(&run, layer, head, SMALL)?;
                        maps.push(HeatPlot::new(format!("{layer}.{head}"), n, n, cells)?.limits(0.0, 1.0));
                    }
                }
                Figure::grid("heads", "Every head: rows are queries, columns are keys", maps, shape.heads)
            }
        };
        let figure =
            figure.caption(format!("{} on {} tokens; colour is the weight.{sink}{}", model.path().display(), ids.len(), said(&edits)));
        drop(bar);
        self.common.show(std::slice::from_ref(&table))?;
        if model.has_head() && model.is_causal() && ids.len() > 1 && !self.common.quiet && !self.common.json {
            print(format_args!("loss {:.4} nats a token", run.loss()?))?;
        }
        let mut files = table_files(&[table]);
        files.extend(figure_files(&[figure])?);
        write_files(Folder::open(&self.out.out, "look")?, &files, &self.common)?;
        if let Some(path) = &self.html {
            let text = text.map_or_else(|| Ok(model.tokenizer()?.decode(&ids)?), Ok::<_, anyhow::Error>)?;
            let page = regard_web::frozen(model, &text, &edits).map_err(Unusable)?;
            regard_lab::write_atomic(path, page.as_bytes())?;
            if !self.common.quiet {
                note(format_args!("wrote {}", path.display()));
            }
        }
        Ok(Outcome::Done)
    }
}

/// Edits in words, as a sentence behind others.
fn said(edits: &Edits) -> String {
    if edits.is_empty() { String::new() } else { format!(" {}", edits.explain().replace('\n', " ")) }
}

/// What every head does: previous token, induction, first token, ..., each with its baseline and an interval over texts
///
/// A label needs the lower end of the 95 % interval of its lift above 0.4. Induction is measured on text, and on random tokens that come twice.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard classify\n  regard classify model.gguf --texts 8 --tokens 128 --json")]
pub(crate) struct Classify {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    #[command(flatten)]
    texts: Texts,
    #[command(flatten)]
    common: Common,
}

impl Classify {
    fn run(self) -> Result<Outcome> {
        let bar = self.common.start("classify")?;
        let model = load(self.model.as_deref())?;
        let texts = self.texts.ids(&model)?;
        let mut seen = 0;
        let heads = model.classify(&texts, |done, all| {
            if seen == 0 {
                bar.expect(all as u64);
            }
            bar.advance((done - seen) as u64);
            seen = done;
        })?;
        drop(bar);
        let mut columns = vec![("layer", "layer"), ("head", "head"), ("labels", "labels")];
        columns.extend(regard_model::scores::NAMES.map(|name| (name, name)));
        columns.extend([("broad", "broad"), ("column", "largest column"), ("writes", "share of writing")]);
        let mut table = Table::new("classify", "Mean scores of every head; a label needs its lift's lower 95 % bound above 0.4.", &columns);
        for head in heads {
            let labels = if head.labels.is_empty() { "mixed".to_owned() } else { head.labels.join(" ") };
            let mut row = vec![head.layer.into(), head.head.into(), labels.into()];
            row.extend(head.scores.map(regard_lab::Value::from));
            row.extend([head.broad.into(), head.column.into(), head.writes.into()]);
            table.push(row);
        }
        self.common.show(&[table])?;
        Ok(Outcome::Done)
    }
}

/// What the model would say if it stopped behind each layer
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard lens --text \"Emma and David went to the m\"\n  regard lens model.gguf --text \"The capital of France is\" --edits L9=zero"
)]
pub(crate) struct Lens {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text; its last token is looked at
    #[arg(long, value_name = "TEXT", default_value = "Emma and David went to the market. David said, ")]
    text: String,
    /// Edits, as in L3.H1=zero/scale=off
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    #[command(flatten)]
    common: Common,
}

impl Lens {
    fn run(self) -> Result<Outcome> {
        let _bar = self.common.start("lens")?;
        let model = load(self.model.as_deref())?;
        let (ids, edits) = (model.ids(Input::Text(&self.text))?, Edits::parse(&self.edits)?);
        let lens = model.lens(&ids, &edits, &sources(&model, &edits)?, 3)?;
        let columns = [
            ("layer", "behind layer"),
            ("first", "likeliest"),
            ("probability", "probability"),
            ("second", "then"),
            ("third", "then"),
            ("entropy", "entropy (nats)"),
        ];
        let mut table = Table::new(
            "lens",
            "The last norm and the head on the stream behind each layer, at the last token; row 0 is the embedding.",
            &columns,
        );
        for layer in 0..=model.shape().layers {
            let row = ids.len() - 1;
            let word = |place: usize| format!("{:?}", model.piece(lens.top[[layer, row, place]]));
            let probability = f64::from(lens.probability[[layer, row, 0]]);
            table.push(vec![
                layer.into(),
                word(0).into(),
                probability.into(),
                word(1).into(),
                word(2).into(),
                lens.entropy[[layer, row]].into(),
            ]);
        }
        self.common.show(&[table])?;
        Ok(Outcome::Done)
    }
}

/// Edit a model and see what it costs: loss, predictions and text, on several texts, with an interval
///
/// The unit of the evidence is the text: differences are paired, the interval is a bootstrap over texts, p is that of flipped signs. An edit that matches
/// nothing is an error; one that changes no bit says so. The grammar:
///
///   L3.H1=zero/L5.H1,5=mean     scale=off     temp=2     mask=window:15,0~or~first:4     heads=hide:first     heads=uniform     L2.mlp=gain:0.5
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard surgery scale=off
  regard surgery stories15M/model.bin L1.H5=zero --texts 32
  regard surgery model.gguf \"mask=window:15,0~or~first:4\" --file book.txt --prompt \"Once upon a time\"
  regard surgery heads=hide:first --explain")]
pub(crate) struct Surgery {
    /// The model (may be left out), and the edits
    #[arg(value_name = "[MODEL] EDITS", num_args = 1..=2, required = true)]
    words: Vec<String>,
    #[command(flatten)]
    texts: Texts,
    /// Write on from this, before and after
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Say the edits in words, and do nothing
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    common: Common,
}

impl Surgery {
    fn run(self) -> Result<Outcome> {
        let bar = self.common.start("surgery")?;
        let (path, text) = match self.words.as_slice() {
            [edits] => (None, edits),
            [model, edits, ..] => (Some(Path::new(model)), edits),
            [] => return Err(Unusable("edits are missing, as in `regard surgery scale=off`".to_owned()).into()),
        };
        let edits = Edits::parse(text)?;
        if self.explain {
            print(edits.explain())?;
            return Ok(Outcome::Done);
        }
        let model = load(path)?;
        let (texts, sources) = (self.texts.ids(&model)?, sources(&model, &edits)?);
        bar.expect(texts.len() as u64);
        let outcome = model.surgery(&texts, &edits, &sources, |_, _| bar.advance(1))?;
        let difference = &outcome.difference;
        let columns = [("what", "what"), ("value", "value")];
        let mut table = Table::new("surgery", &format!("What it costs.{}", said(&edits)), &columns);
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
        for (what, value) in [
            ("loss as it is (nats a token)", mean(&outcome.intact)),
            ("loss with the edits", mean(&outcome.edited)),
            ("change", difference.mean),
            ("95 % from", difference.low),
            ("to", difference.high),
            ("standard deviation over texts", difference.deviation),
            ("texts", difference.texts as f64),
            ("of these worse", difference.worse as f64),
            ("p (flipped signs)", difference.p),
            ("smallest p that so many texts can give", difference.least_p),
            ("divergence of predictions (nats a token)", outcome.divergence.unwrap_or(f64::NAN)),
            ("share of likeliest tokens that changed", outcome.changed.unwrap_or(f64::NAN)),
        ] {
            table.push(vec![what.into(), value.into()]);
        }
        drop(bar);
        self.common.show(&[table])?;
        if difference.least_p > 0.05 {
            note(format_args!(
                "{} texts can give no p below {:.3}: more texts are needed to be sure of anything",
                difference.texts, difference.least_p
            ));
        }
        if outcome.divergence == Some(0.0) && outcome.intact == outcome.edited {
            note("the edits changed nothing, not one bit of a loss");
        }
        if let (Some(prompt), false) = (&self.prompt, self.common.json) {
            let ids = model.ids(Input::Text(prompt))?;
            let greedy = regard_nn::generate::Sampling { temperature: 0.0, ..regard_nn::generate::Sampling::default() };
            for (what, edits) in [("before", &Edits::default()), ("after", &edits)] {
                let new = model.generate(&ids, 60, edits, &sources, &greedy, |_| true)?;
                print(format_args!("{what}: {prompt}{}", model.tokenizer()?.decode(&new)?))?;
            }
        }
        Ok(Outcome::Done)
    }
}

/// Take every head out, one by one, on several texts; can be stopped and taken up again
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard screen\n  regard screen stories15M/model.bin --texts 16 --tokens 256 --out screened")]
pub(crate) struct Screen {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    #[command(flatten)]
    texts: Texts,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// Heads that are done, beside what they belong to.
#[derive(serde::Serialize, serde::Deserialize)]
struct Progressed {
    model: String,
    texts: Vec<Vec<u32>>,
    heads: Vec<Screened>,
}

impl Screen {
    fn run(self) -> Result<Outcome> {
        let bar = self.common.start("screen")?;
        let model = load(self.model.as_deref())?;
        let texts = self.texts.ids(&model)?;
        let name = model.path().display().to_string();
        std::fs::create_dir_all(&self.out.out).with_context(|| format!("cannot make {}", self.out.out.display()))?;
        let state = self.out.out.join("screen.partial.json");
        let before = std::fs::read(&state).ok().and_then(|bytes| serde_json::from_slice::<Progressed>(&bytes).ok());
        let known = before.filter(|p| p.model == name && p.texts == texts).map_or_else(Vec::new, |p| p.heads);
        let shape = model.shape();
        bar.expect((shape.layers * shape.heads) as u64);
        let mut progressed = Progressed { model: name, texts: texts.clone(), heads: Vec::new() };
        let outcomes = model.screen(&texts, &known, |head, _| {
            progressed.heads.push(head.clone());
            if progressed.heads.len() > known.len()
                && let Ok(bytes) = serde_json::to_vec(&progressed)
            {
                // A lost state costs time, not results.
                let _ = regard_lab::write_atomic(&state, &bytes);
            }
            bar.advance(1);
            true
        })?;
        drop(bar);
        let columns = [
            ("layer", "layer"),
            ("head", "head"),
            ("change", "change of the loss (nats a token)"),
            ("low", "95 % from"),
            ("high", "to"),
            ("worse", "texts worse"),
            ("p", "p"),
            ("q", "q"),
        ];
        let caption = format!("The loss without each head, less the loss with it, over {} texts; q is Benjamini-Hochberg's.", texts.len());
        let mut table = Table::new("screen", &caption, &columns);
        for (i, outcome) in outcomes.iter().enumerate() {
            let d = &outcome.difference;
            table.push(vec![
                (i / shape.heads).into(),
                (i % shape.heads).into(),
                d.mean.into(),
                d.low.into(),
                d.high.into(),
                d.worse.into(),
                d.p.into(),
                outcome.q.into(),
            ]);
        }
        let names = (0..outcomes.len()).map(|i| format!("{}.{}", i / shape.heads, i % shape.heads)).collect();
        let bars = BarPlot::new("", "head", names, Axis::linear("change of the loss (nats a token)")).bars_with_intervals(
            "without the head",
            outcomes.iter().map(|o| o.difference.mean).collect(),
            outcomes.iter().map(|o| (o.difference.low, o.difference.high)).collect(),
        );
        let figure = Figure::new("screen", "What each head is worth").panel(bars).caption(caption);
        self.common.show(std::slice::from_ref(&table))?;
        let mut files = table_files(&[table]);
        files.extend(figure_files(&[figure])?);
        write_files(Folder::open(&self.out.out, "screen")?, &files, &self.common)?;
        let _ = std::fs::remove_file(&state);
        Ok(Outcome::Done)
    }
}

/// Put what each head did on one text into a run of another, and see which head carries the difference
///
/// Both texts must have as many tokens. For each head: the logit of the clean text's next token less that of the corrupt one's, of the corrupt run with this
/// head's z from the clean run, as a share of the whole difference.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard patch model.gguf --clean \"The capital of France is\" --corrupt \"The capital of Italy is\"")]
pub(crate) struct Patch {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text whose heads are taken
    #[arg(long, value_name = "TEXT")]
    clean: String,
    /// The text that they are put into
    #[arg(long, value_name = "TEXT")]
    corrupt: String,
    #[command(flatten)]
    common: Common,
}

impl Patch {
    fn run(self) -> Result<Outcome> {
        let bar = self.common.start("patch")?;
        let model = load(self.model.as_deref())?;
        let (clean, corrupt) = (model.ids(Input::Text(&self.clean))?, model.ids(Input::Text(&self.corrupt))?);
        if clean.len() != corrupt.len() {
            let message = format!("the clean text has {} tokens and the corrupt one {}: they must be as long", clean.len(), corrupt.len());
            return Err(Unusable(message).into());
        }
        let mut sources = Sources::default();
        model.source(&mut sources, "clean", &clean)?;
        let last = |ids: &[u32], edits: &Edits| -> Result<Vec<f32>> {
            let run = model.run(ids, edits, &sources)?;
            Ok(model.logits(&run.hidden().row(ids.len() - 1).to_vec())?)
        };
        let (a, b) = (last(&clean, &Edits::default())?, last(&corrupt, &Edits::default())?);
        let (right, wrong) = (regard_nn::generate::argmax(&a), regard_nn::generate::argmax(&b));
        if right == wrong {
            return Err(Unusable(format!("both texts go on with {:?}: there is no difference to carry", model.piece(right as u32))).into());
        }
        let margin = |logits: &[f32]| f64::from(logits[right]) - f64::from(logits[wrong]);
        let (high, low) = (margin(&a), margin(&b));
        let shape = model.shape();
        let columns = [
            ("layer", "layer"),
            ("head", "head"),
            ("margin", "margin with this head from the clean text"),
            ("share", "share of the difference"),
        ];
        let caption = format!(
            "Margin of {:?} over {:?}: {high:.3} on the clean text, {low:.3} on the corrupt one.",
            model.piece(right as u32),
            model.piece(wrong as u32)
        );
        let mut table = Table::new("patch", &caption, &columns);
        bar.expect((shape.layers * shape.heads) as u64);
        for layer in 0..shape.layers {
            for head in 0..shape.heads {
                let now = margin(&last(&corrupt, &Edits::parse(&format!("L{layer}.H{head}=patch:clean"))?)?);
                table.push(vec![layer.into(), head.into(), now.into(), ((now - low) / (high - low)).into()]);
                bar.advance(1);
            }
        }
        drop(bar);
        self.common.show(&[table])?;
        Ok(Outcome::Done)
    }
}
