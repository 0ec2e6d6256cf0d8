//! The settings of a training: options, resulting settings, and the command line that repeats them.

use clap::builder::{OsStringValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use regard_files::shell_quoted;
use regard_nn::mlp::MlpKind;
use regard_nn::norm::NormKind;
use regard_nn::positions::Positions;
use regard_nn::sublayer::NormPlace;
use regard_nn::tokenizer::TokenizerKind;
use regard_nn::training::run::Settings;
use regard_nn::training::source::TextSource;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PositionsArg {
    /// Learned embedding per position
    Learned,
    /// Sinusoidal encoding
    Sinusoidal,
    /// Rotary (RoPE)
    Rotary,
    /// ALiBi linear distance bias
    Alibi,
    /// No position encoding
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum NormArg {
    /// LayerNorm
    Layer,
    /// RMSNorm
    Rms,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum NormPlaceArg {
    /// Before attention and MLP
    Pre,
    /// After each residual addition
    Post,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MlpArg {
    /// Two layers with GELU
    Gelu,
    /// SwiGLU
    Swiglu,
}

/// `char`, `bpe:SIZE`, `bpe+bos:SIZE` or `wordpiece:SIZE`.
#[derive(Clone, Copy, Debug)]
struct TokenizerArg(TokenizerKind);

impl FromStr for TokenizerArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sized = |size: &str| size.parse::<usize>().ok().filter(|size| (1..=1_000_000).contains(size));
        let kind = match text.split_once(':') {
            None if text == "char" => Some(TokenizerKind::Char),
            Some(("bpe", size)) => sized(size).map(TokenizerKind::Bpe),
            Some(("bpe+bos", size)) => sized(size).map(TokenizerKind::BpeBos),
            Some(("wordpiece", size)) => sized(size).map(TokenizerKind::WordPiece),
            _ => None,
        };
        kind.map(Self).ok_or_else(|| "give char, bpe:SIZE, bpe+bos:SIZE or wordpiece:SIZE, for example bpe:512".to_owned())
    }
}

/// `none` or a positive number.
#[derive(Clone, Copy, Debug)]
struct ClipArg(Option<f64>);

impl FromStr for ClipArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|clip| Self(Some(clip))).map_err(|_| "give a number, or none".to_owned()),
        }
    }
}

fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// The name of a text: recorded with the model, so it must be UTF-8.
fn text_name(name: OsString) -> Result<PathBuf, String> {
    match name.to_str() {
        Some(_) => Ok(name.into()),
        None => Err("its name is not UTF-8 and cannot be recorded: give it another one, or pipe it in with --text -".to_owned()),
    }
}

/// All are optional: a resumed training distinguishes given options from defaults.
#[derive(Args, Debug, Clone)]
pub(crate) struct SettingArgs {
    /// Text to train on (UTF-8); - is the standard input [default: stories of a built-in grammar, whose entropy is known]
    #[arg(long, value_parser = OsStringValueParser::new().try_map(text_name), value_name = "FILE", help_heading = "Text")]
    pub(crate) text: Option<PathBuf>,
    /// Characters of the stories [default: 1000000]
    #[arg(long, value_name = "N", conflicts_with = "text", value_parser = up_to(100_000_000), help_heading = "Text")]
    characters: Option<usize>,
    /// char, bpe:SIZE (byte-level BPE of SIZE tokens), bpe+bos:SIZE (the same with a BOS token at the start of every window) or
    /// wordpiece:SIZE (loses case and spacing) [default: char]
    #[arg(long, value_name = "KIND", help_heading = "Text")]
    tokenizer: Option<TokenizerArg>,
    /// Width of the residual stream [default: 64]
    #[arg(long, value_name = "N", value_parser = up_to(65_536), help_heading = "Model")]
    width: Option<usize>,
    /// Layers (attention and MLP) [default: 2]
    #[arg(long, value_name = "N", value_parser = up_to(1000), help_heading = "Model")]
    layers: Option<usize>,
    /// Query heads; a divisor of the width [default: 4]
    #[arg(long, value_name = "N", value_parser = up_to(4096), help_heading = "Model")]
    heads: Option<usize>,
    /// Key and value heads; a divisor of the heads [default: as many as heads]
    #[arg(long, value_name = "N", value_parser = up_to(4096), help_heading = "Model")]
    kv_heads: Option<usize>,
    /// Context length in tokens [default: 64]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20), help_heading = "Model")]
    context: Option<usize>,
    /// Position encoding [default: learned]
    #[arg(long, value_enum, help_heading = "Model")]
    positions: Option<PositionsArg>,
    /// Normalisation [default: layer]
    #[arg(long, value_enum, help_heading = "Model")]
    norm: Option<NormArg>,
    /// Place of the normalisation [default: pre]
    #[arg(long, value_enum, help_heading = "Model")]
    norm_place: Option<NormPlaceArg>,
    /// MLP of each layer [default: gelu]
    #[arg(long, value_enum, help_heading = "Model")]
    mlp: Option<MlpArg>,
    /// Tie the output head to the token embedding [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    tied: Option<bool>,
    /// Dropout probability [default: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, help_heading = "Model")]
    dropout: Option<f64>,
    /// Training steps in all; may grow with --resume, no other setting changes [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), help_heading = "Training")]
    steps: Option<u64>,
    /// Sequences per step [default: 32]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20), help_heading = "Training")]
    batch: Option<usize>,
    /// Micro-batches per step (or part), computed one after the other to save memory; a divisor of the batch [default: 1]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20), help_heading = "Training")]
    micro_batches: Option<usize>,
    /// Parts per step, summed in a fixed tree; --workers share them without changing a byte; a divisor of the batch [default: 1]
    #[arg(long, value_name = "P", value_parser = up_to(1 << 20), help_heading = "Training")]
    parts: Option<usize>,
    /// Peak learning rate; decays linearly to a tenth at the last step [default: 0.003]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = "Training")]
    rate: Option<f64>,
    /// Warm-up steps [default: 50]
    #[arg(long, value_name = "N", help_heading = "Training")]
    warmup: Option<u64>,
    /// Clip the gradient norm, or none [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = "Training")]
    clip: Option<ClipArg>,
    /// Decoupled weight decay (AdamW), matrices only [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = "Training")]
    weight_decay: Option<f64>,
    /// Seed of stories, initial weights, windows and dropout [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    seed: Option<u64>,
    /// Fraction of windows that repeat a random segment (trains induction heads) [default: 0]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, help_heading = "Text")]
    repeats: Option<f64>,
    /// First steps in which every window repeats a segment and only predictable tokens count [default: 0]
    #[arg(long, value_name = "N", help_heading = "Text")]
    repeats_first: Option<u64>,
    /// Steps between measurements of the loss on the last tenth of the text, which is held out [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Training")]
    validate_every: Option<u64>,
}

fn set<T>(place: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *place = value;
    }
}

impl SettingArgs {
    /// The settings with the given options applied.
    pub(crate) fn applied_to(&self, mut settings: Settings) -> Settings {
        let Settings { text, tokenizer, model, train, validate_every } = &mut settings;
        set(&mut train.seed, self.seed);
        match (&self.text, self.characters, &mut *text) {
            (Some(path), ..) => *text = TextSource::named(path.clone()),
            (None, Some(characters), _) => *text = TextSource::Stories { characters, seed: train.seed },
            (None, None, TextSource::Stories { seed, .. }) => *seed = train.seed,
            (None, None, TextSource::File { .. } | TextSource::Stdin) => {}
        }
        set(tokenizer, self.tokenizer.map(|t| t.0));
        set(&mut model.width, self.width);
        set(&mut model.layers, self.layers);
        set(&mut model.heads, self.heads);
        set(&mut model.kv_heads, self.kv_heads.map(Some));
        set(&mut model.context, self.context);
        set(&mut model.positions, self.positions.map(PositionsArg::setting));
        set(&mut model.norm, self.norm.map(NormArg::setting));
        set(&mut model.norm_place, self.norm_place.map(NormPlaceArg::setting));
        set(&mut model.mlp, self.mlp.map(MlpArg::setting));
        set(&mut model.tied, self.tied);
        set(&mut model.dropout, self.dropout);
        set(&mut train.steps, self.steps);
        set(&mut train.batch, self.batch);
        set(&mut train.micro_batches, self.micro_batches);
        set(&mut train.parts, self.parts);
        set(&mut train.optim.rate, self.rate);
        set(&mut train.optim.warmup, self.warmup);
        set(&mut train.optim.clip, self.clip.map(|clip| clip.0));
        set(&mut train.optim.weight_decay, self.weight_decay);
        set(&mut train.repeats, self.repeats);
        set(&mut train.repeats_first, self.repeats_first);
        set(validate_every, self.validate_every);
        settings
    }
}

impl PositionsArg {
    fn setting(self) -> Positions {
        match self {
            Self::Learned => Positions::Learned,
            Self::Sinusoidal => Positions::Sinusoidal,
            Self::Rotary => Positions::Rotary(10_000.0),
            Self::Alibi => Positions::Alibi,
            Self::None => Positions::None,
        }
    }
}

impl NormArg {
    fn setting(self) -> NormKind {
        match self {
            Self::Layer => NormKind::Layer,
            Self::Rms => NormKind::Rms,
        }
    }
}

impl NormPlaceArg {
    fn setting(self) -> NormPlace {
        match self {
            Self::Pre => NormPlace::Pre,
            Self::Post => NormPlace::Post,
        }
    }
}

impl MlpArg {
    fn setting(self) -> MlpKind {
        match self {
            Self::Gelu => MlpKind::Gelu,
            Self::Swiglu => MlpKind::SwiGlu,
        }
    }
}

/// The word on the command line of a setting that has one.
fn word<A: ValueEnum + Copy, S: PartialEq>(setting: &S, of: impl Fn(A) -> S) -> String {
    let named = A::value_variants().iter().find(|arg| of(**arg) == *setting).and_then(A::to_possible_value);
    named.map_or_else(|| "other".to_owned(), |value| value.get_name().to_owned())
}

/// Settings as command-line options.
pub(crate) trait CommandLine {
    /// Every setting as an option and its value, the text first.
    fn options(&self) -> Vec<(&'static str, String)>;

    /// A command line with every setting, and without what cannot change a result.
    fn command(&self) -> String {
        // One part is what a step was before there were any: tables of such trainings have the bytes that they had.
        let options = self.options().into_iter().filter(|option| *option != ("--parts", "1".to_owned()));
        options.fold("regard train".to_owned(), |line, (name, value)| format!("{line} {name} {}", shell_quoted(&value)))
    }
}

impl CommandLine for Settings {
    fn options(&self) -> Vec<(&'static str, String)> {
        let Self { text, tokenizer, model, train, validate_every } = self;
        let optim = &train.optim;
        vec![
            match text {
                TextSource::Stories { characters, .. } => ("--characters", characters.to_string()),
                TextSource::File { path } => ("--text", path.display().to_string()),
                TextSource::Stdin => ("--text", "-".to_owned()),
            },
            (
                "--tokenizer",
                match tokenizer {
                    TokenizerKind::Char => "char".to_owned(),
                    TokenizerKind::Bpe(size) => format!("bpe:{size}"),
                    TokenizerKind::BpeBos(size) => format!("bpe+bos:{size}"),
                    TokenizerKind::WordPiece(size) => format!("wordpiece:{size}"),
                },
            ),
            ("--width", model.width.to_string()),
            ("--layers", model.layers.to_string()),
            ("--heads", model.heads.to_string()),
            ("--kv-heads", model.kv_heads().to_string()),
            ("--context", model.context.to_string()),
            ("--positions", word(&model.positions, PositionsArg::setting)),
            ("--norm", word(&model.norm, NormArg::setting)),
            ("--norm-place", word(&model.norm_place, NormPlaceArg::setting)),
            ("--mlp", word(&model.mlp, MlpArg::setting)),
            ("--tied", model.tied.to_string()),
            ("--dropout", model.dropout.to_string()),
            ("--steps", train.steps.to_string()),
            ("--batch", train.batch.to_string()),
            ("--micro-batches", train.micro_batches.to_string()),
            ("--parts", train.parts.to_string()),
            ("--rate", optim.rate.to_string()),
            ("--warmup", optim.warmup.to_string()),
            ("--clip", optim.clip.map_or_else(|| "none".to_owned(), |clip| clip.to_string())),
            ("--weight-decay", optim.weight_decay.to_string()),
            ("--repeats", train.repeats.to_string()),
            ("--repeats-first", train.repeats_first.to_string()),
            ("--seed", train.seed.to_string()),
            ("--validate-every", validate_every.to_string()),
        ]
    }
}
