//! `regard look`: statistics and pictures of every head.

use super::image::{self, Query};
use super::neuron::{Pair, neuron};
use super::{ABOUT_MODEL, SourceArgs, VectorArgs, load, picture, said, sources, written};
use crate::options::{Common, Out, Outcome, Unusable, figure_files, table_files, write_files};
use crate::output::{note, print};
use crate::progress::Bar;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use regard_files::limits::{self, PAGE_BYTES};
use regard_files::{Output, is_sealed_html, seal_html, shell_quoted};
use regard_lab::experiments::Progress;
use regard_lab::{Folder, Table};
use regard_model::front::Front;
use regard_model::front::image::Image;
use regard_model::{Edits, Generation, Input, Model, Run, Sources};
use regard_web::About;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

/// Look at every head of a model on a text: statistics, and pictures of all heads or of one
///
/// Statistics are collected in one pass, in memory that grows with the text and not with its square; weights come from the kernel that made
/// the output. The first token often takes most of the weight and hides the rest: --sink hide leaves it out of pictures and weights, --sink
/// renormalise divides by what remains. --neuron shows how one score is computed, element by element. --generate lets the model
/// continue the text first.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard look
  regard look SmolLM2-135M.Q4_1.gguf --text \"The cat sat on the mat because it was tired\" --sink hide
  regard look model.bin --layer 3 --head 1 --edits scale=off
  regard look model.bin --layer 3 --head 1 --neuron 12,7
  regard look --keys --head 1.2
  regard look model.bin --text \"Once upon a time\" --generate 20 --layer 3 --head 1
  regard look vit-base --image cat.png --head 11.3
  regard look tiny.en.pt --audio speech.wav --part cross --head 2.4
  regard look --html look.html --title \"The head of the previous token\" --head 1.2")]
pub(crate) struct Look {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text [default: the beginning of a story]
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// A file with the text
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Of an encoder-decoder: which attention [default: decoder]
    #[arg(long, value_enum, value_name = "PART")]
    part: Option<PartArg>,
    /// Edits, as in L3.H1=zero/scale=off; in an encoder-decoder they apply to the decoder's self-attention and MLPs
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    #[command(flatten)]
    vectors: VectorArgs,
    /// Of a model that reads images: a PNG file, resized and normalised as the model's folder says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "file", "html", "neuron", "audio", "source", "part"])]
    image: Option<PathBuf>,
    /// With --image: the patch that attends, by row and column as in 3,7 [default: the row of the class]
    #[arg(long, value_name = "ROW,COLUMN", requires = "image")]
    patch: Option<Pair>,
    /// Draw this layer's head alone, with tokens, and write its weights (needs --head)
    #[arg(long, requires = "head", value_name = "N")]
    layer: Option<usize>,
    /// Head of --layer, or layer and head at once, as in 3.1
    #[arg(long, value_name = "N|L.H")]
    head: Option<HeadAt>,
    /// Show which keys are attended to: what each key gets from all queries, of every head (with --head: of this one)
    #[arg(long)]
    keys: bool,
    /// Show how one score of the head is computed: positions of the query and key tokens, as in 12,7
    #[arg(long, requires = "head", value_name = "QUERY,KEY")]
    neuron: Option<Pair>,
    /// The first token in pictures and in the weights of a head
    #[arg(long, value_enum, default_value_t = SinkArg::Show, value_name = "HOW")]
    sink: SinkArg,
    /// Let the model append this number of tokens, each the most likely one, and include them
    #[arg(long, default_value_t = 0, value_name = "N")]
    generate: usize,
    /// Write the page of `regard serve` with this text's data into one file, which opens from the disk
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Title of the page
    #[arg(long, requires = "html", value_name = "TEXT")]
    title: Option<String>,
    /// A sentence below the title
    #[arg(long, requires = "html", value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

/// Characters of a text that are printed.
const EXCERPT: usize = 400;

/// A head by its number in a layer, or with its layer.
#[derive(Clone, Copy, Debug)]
struct HeadAt {
    layer: Option<usize>,
    head: usize,
}

impl FromStr for HeadAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<usize>> = text.split('.').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([head]) => Ok(Self { layer: None, head: *head }),
            Some([layer, head]) => Ok(Self { layer: Some(*layer), head: *head }),
            _ => Err("give a head as a number, beside --layer, or as in 3.1: layer 3, head 1".to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PartArg {
    /// Self-attention of the encoder
    Encoder,
    /// Self-attention of the decoder
    Decoder,
    /// From the decoder to what the encoder read
    Cross,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SinkArg {
    /// As it is
    Show,
    /// Left out
    Hide,
    /// Left out, and the rest divided by what remains
    Renormalise,
}

impl SinkArg {
    fn sink(self) -> regard_model::Sink {
        match self {
            Self::Show => regard_model::Sink::Show,
            Self::Hide => regard_model::Sink::Hide,
            Self::Renormalise => regard_model::Sink::Renormalise,
        }
    }
}

/// The command line of this process, as a shell reads it.
fn this_command() -> String {
    let words = std::env::args_os().skip(1).map(|word| shell_quoted(&word.to_string_lossy()));
    std::iter::once("regard".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Today in UTC, as in 2026-11-18.
fn today() -> String {
    let days = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86_400) as i64;
    // Years begin in March, so that the leap day is the last one; eras have 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", 400 * era + year + i64::from(month <= 2))
}

/// Means over the rows of every head.
fn statistics(run: &Run, caption: &str, bar: &Bar) -> Result<Table> {
    let columns = [
        ("layer", "layer"),
        ("head", "head"),
        ("entropy", "entropy (nats)"),
        ("max_weight", "largest weight"),
        ("diagonal_mass", "weight of the own token"),
        ("previous_token_mass", "weight of the previous token"),
        ("first_token_mass", "weight of the first token"),
        ("local_mass", "weight within 3 tokens"),
        ("mean_distance", "mean distance (tokens)"),
    ];
    let shape = run.model().shape();
    let mut table = Table::new("look", caption, &columns);
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
    Ok(table)
}

/// What each key gets from all queries, of one head or of every head.
fn keys(run: &Run, chosen: Option<[usize; 2]>) -> Result<Table> {
    let columns = [
        ("layer", "layer"),
        ("head", "head"),
        ("key", "key"),
        ("token", "key's token"),
        ("weight", "weight from all queries"),
        ("mean", "mean weight of the queries that may see it"),
    ];
    let mut table = Table::new("keys", "What each key gets from the queries of a head.", &columns);
    let (shape, [_, pieces]) = (run.model().shape(), run.pieces());
    for layer in (0..shape.layers).filter(|layer| chosen.is_none_or(|[of, _]| of == *layer)) {
        for (head, weights) in picture::key_weights(run, layer)?.into_iter().enumerate() {
            if chosen.is_some_and(|[_, of]| of != head) {
                continue;
            }
            for (key, ([weight, mean], piece)) in weights.into_iter().zip(&pieces).enumerate() {
                table.push(vec![layer.into(), head.into(), key.into(), picture::shown(piece).into(), weight.into(), mean.into()]);
            }
        }
    }
    Ok(table)
}

/// What rows of a run are of.
fn of_rows(run: &Run) -> &'static str {
    if run.model().front_kind().is_some() && !run.is_cross() { "rows of the encoder" } else { "tokens" }
}

/// A text on the terminal: all of it, or its first and last characters.
fn excerpt(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let (n, end) = (characters.len(), EXCERPT / 4);
    if n <= EXCERPT {
        return format!("{text:?}");
    }
    let [first, last] = [&characters[..EXCERPT - end], &characters[n - end..]].map(|part| part.iter().collect::<String>());
    format!("{first:?} ... {last:?} ({n} characters)")
}

impl Look {
    /// Layer and head that are chosen.
    fn head(&self) -> Result<Option<[usize; 2]>> {
        let Some(at) = self.head else { return Ok(None) };
        match (self.layer, at.layer) {
            (Some(layer), None) | (None, Some(layer)) => Ok(Some([layer, at.head])),
            (None, None) => bail!(Unusable(format!("no layer is given: --head {}; use --layer N too, or --head L.H", at.head))),
            (Some(_), Some(_)) => bail!(Unusable("the layer is given twice; use --layer N --head N, or --head L.H".to_owned())),
        }
    }

    /// The tokens, and how many of them the model wrote.
    fn ids(&self, model: &Model, edits: &Edits, sources: &Sources) -> Result<(Vec<u32>, usize)> {
        let text = match (&self.text, &self.file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(path)) => Some(regard_files::read_text(path, limits::TEXT_BYTES.max)?),
            (None, None) => None,
        };
        if model.encoder().is_some() {
            return written(model, text.as_deref(), self.generate, edits, sources);
        }
        let mut ids = match &text {
            Some(text) => model.ids(Input::Text(text))?,
            None => model.own_texts(1, 48)?.swap_remove(0),
        };
        if self.generate == 0 {
            return Ok((ids, 0));
        }
        let written = model.generate(&ids, &Generation::greedy(self.generate), edits, sources, |_| true)?;
        ids.extend_from_slice(&written);
        Ok((ids, written.len()))
    }

    /// Names of the tables and figures that this call writes.
    fn files(&self, head: Option<[usize; 2]>) -> Vec<String> {
        let (mut tables, mut figures) = (vec!["look".to_owned()], Vec::new());
        match head {
            Some([layer, head]) => {
                tables.push(format!("head_{layer}_{head}"));
                figures.push(format!("head_{layer}_{head}"));
                if let Some(pair) = self.neuron {
                    tables.extend(["neuron".to_owned(), "neuron_keys".to_owned()]);
                    figures.push(format!("neuron_{layer}_{head}_{}_{}", pair.query, pair.key));
                }
            }
            None => figures.push("heads".to_owned()),
        }
        if self.keys {
            tables.push("keys".to_owned());
            figures.push("keys".to_owned());
        }
        let figures = figures.iter().flat_map(|name| [format!("{name}.svg"), format!("{name}.png")]);
        tables.iter().map(|name| format!("{name}.csv")).chain(figures).collect()
    }

    /// The weights of one head, as its picture shows them.
    fn weights(&self, run: &Run, layer: usize, head: usize) -> Result<Table> {
        let (filled, sink) = (run.filled(), self.sink.sink());
        let (size, cells) = picture::weights(run, layer, head, sink)?;
        let columns =
            [("query", "query"), ("key", "key"), ("query_token", "query's token"), ("key_token", "key's token"), ("weight", "weight")];
        let pooled = if size != filled { " Means of cells; tokens are the first of each." } else { "" };
        let caption = format!("Weights of layer {layer}, head {head}.{pooled}{}", picture::said_of(sink));
        let mut table = Table::new(&format!("head_{layer}_{head}"), &caption, &columns);
        let [rows, keys] = run.pieces();
        let [_, n] = size;
        for (i, weight) in cells.iter().enumerate().filter(|(i, weight)| !run.is_causal() || i % n <= i / n || **weight != 0.0) {
            let first = |cell: usize, of: usize| (cell * filled[of]).div_ceil(size[of]);
            let (query, key) = (first(i / n, 0), first(i % n, 1));
            let pieces = [&rows[query], &keys[key]].map(|piece| picture::shown(piece).into());
            let [of_query, of_key] = pieces;
            table.push(vec![query.into(), key.into(), of_query, of_key, (*weight).into()]);
        }
        Ok(table)
    }

    /// A model of images.
    fn run_image(&self, model: &Model, folder: Folder, chosen: Option<[usize; 2]>, bar: Bar) -> Result<Outcome> {
        let (Some(path), Some(front)) = (&self.image, model.front_kind()) else {
            let what = if self.image.is_some() { "reads no images; leave --image out" } else { "reads images; give --image FILE (PNG)" };
            bail!(Unusable(format!("{} {what}", model.family())));
        };
        let query = Query::new(front, self.patch.map(|pair| [pair.query, pair.key]))?;
        let (edits, picture) = (Edits::parse(&self.edits)?, Image::read(path)?);
        let run = model.read(Input::Image(&picture), &edits, &sources(model, &edits)?)?;
        let caption = format!("Means over the rows of each head, on {} patches and the class.{}", run.len() - 1, said(&edits));
        let mut tables = vec![statistics(&run, &caption, &bar)?];
        let mut figures = Vec::new();
        match chosen {
            Some([layer, head]) => {
                figures.push(image::head(&run, &picture, layer, head, query)?);
                tables.push(image::weights(&run, layer, head, query)?);
            }
            None => figures.push(image::heads(&run, query)?),
        }
        if self.keys {
            figures.push(super::picture::keys(&run)?);
            tables.push(keys(&run, chosen)?);
        }
        drop(bar);
        self.common.show(&tables)?;
        if model.has_head() && !self.common.quiet && !self.common.json {
            let best: Vec<String> = run.next_tokens(0, 5)?.into_iter().map(|(class, p)| format!("{class} ({p:.3})")).collect();
            print(format_args!("most likely classes: {}", best.join(", ")))?;
        }
        let mut files = table_files(&tables);
        files.extend(figure_files(&figures)?);
        write_files(folder, &files, &self.common)?;
        Ok(Outcome::Done)
    }

    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("look")?;
        limits::TOKENS.check("--generate", self.generate)?;
        let folder = Folder::open(&self.out.out, "look")?;
        let chosen = self.head()?;
        folder.reserve(&self.files(chosen))?;
        let html = self.html.as_deref().map(|path| Output::reserve(path, PAGE_BYTES.max, is_sealed_html)).transpose()?;
        let loaded = self.vectors.given(load(self.model.as_deref())?)?;
        if self.image.is_some() || matches!(loaded.front_kind(), Some(Front::Image { .. })) {
            return self.run_image(&loaded, folder, chosen, bar);
        }
        let model = self.source.decoder(&loaded)?;
        if self.part.is_some() && model.encoder().is_none() {
            bail!(Unusable("--part is of encoder-decoders; leave it out".to_owned()));
        }
        if self.html.is_some() && model.encoder().is_some() {
            bail!(Unusable("pages of encoder-decoders are not supported; leave --html out".to_owned()));
        }
        let edits = Edits::parse(&self.edits)?;
        let sources = sources(&model, &edits)?;
        let (ids, written) = self.ids(&model, &edits, &sources)?;
        if let Some(warning) = model.warning(ids.len()) {
            bar.warn(&warning);
        }
        let decoded = model.run(&ids, &edits, &sources)?;
        let run = match self.part {
            Some(PartArg::Encoder) => decoded.encoder().cloned(),
            Some(PartArg::Cross) => decoded.cross(),
            _ => None,
        };
        let run = run.unwrap_or_else(|| decoded.clone());
        let wrote = if written > 0 { format!(" The model wrote the last {written}.") } else { String::new() };
        let caption = format!("Means over the rows of each head, on {} {}.{wrote}{}", run.len(), of_rows(&run), said(&edits));
        let mut tables = vec![statistics(&run, &caption, &bar)?];
        let mut figures = Vec::new();
        match chosen {
            Some([layer, head]) => {
                figures.push(picture::head(&run, layer, head, self.sink.sink())?);
                tables.push(self.weights(&run, layer, head)?);
                if let Some(pair) = self.neuron {
                    let (figure, numbers) = neuron(&run, layer, head, pair)?;
                    figures.push(figure);
                    tables.extend(numbers);
                }
            }
            None => figures.push(picture::heads(&run, self.sink.sink())?),
        }
        if self.keys {
            figures.push(picture::keys(&run)?);
            tables.push(keys(&run, chosen)?);
        }
        drop(bar);
        let talks = !self.common.quiet && !self.common.json;
        if let (true, Ok(tokenizer)) = (talks, model.tokenizer()) {
            print(format_args!("text: {}\n", excerpt(&tokenizer.decode(&ids)?)))?;
        }
        self.common.show(&tables)?;
        if model.has_head() && model.is_causal() && ids.len() > 1 && talks {
            print(format_args!("loss {:.4} nats per token", decoded.loss()?))?;
        }
        let mut files = table_files(&tables);
        files.extend(figure_files(&figures)?);
        write_files(folder, &files, &self.common)?;
        if let Some(output) = html {
            let text = match &self.text {
                Some(text) if written == 0 => text.clone(),
                _ => model.tokenizer()?.decode(&ids)?,
            };
            let about = About { title: self.title, note: self.note, head: chosen, command: this_command(), date: today() };
            let page = regard_web::standalone(&model, &text, &edits, &about).map_err(Unusable)?;
            let path = output.path().to_owned();
            output.write(seal_html(&page).as_bytes())?;
            if !self.common.quiet {
                note(format_args!("wrote {}", path.display()));
            }
        }
        Ok(Outcome::Done)
    }
}
