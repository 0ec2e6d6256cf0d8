//! What the plain cosine of two heads measures.

use crate::drawing::{CheckedFigure, OTHER, joined, map, part, with};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::{Axis, BarPlot, LinePlot, Names, Series, numbers, texts};
use regard_plot::{Tables, Value};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = with(tables.get("head_diversity")?, "mean");
    let plain = part(&table, &[("measure", "plain_cosine".into())]);
    // By the number of heads, so that a bar cannot stand under another one's name.
    let of = |measure: &str, column: &str| -> Vec<f64> {
        let heads = plain.rows.iter().map(|row| plain.value(row, "heads").clone());
        heads.map(|heads| joined(&table, &[("measure", measure.into()), ("heads", heads)], column)).collect()
    };
    let around = |measure: &str| of(measure, "q025").into_iter().zip(of(measure, "q975")).collect();
    let bars = BarPlot::new("Measured and published", "heads", texts(&plain, "heads")?, Axis::linear("similarity of two heads"))
        .bars_with_intervals("plain cosine", of("plain_cosine", "mean"), around("plain_cosine"))
        .bars("of independent heads", of("plain_cosine", "independent"))
        .bars("published", of("plain_cosine", "published"))
        .bars_with_intervals("centred cosine", of("centred_cosine", "mean"), around("centred_cosine"));
    let sharpness = tables.get("head_sharpness")?;
    let mut plot = LinePlot::new(
        "Independent heads at other sharpness",
        Axis::log10("mean sum of squared weights"),
        Axis::linear("similarity of two heads"),
    )
    .names(Names::Legend);
    let mut lengths: Vec<f64> = numbers(sharpness, "seq")?;
    lengths.dedup();
    for (place, seq) in lengths.into_iter().enumerate() {
        let rows = part(sharpness, &[("seq", Value::Integer(seq as i64))]);
        plot = plot
            .series(Series::from_table(format!("plain, {seq} tokens"), &rows, "sum_of_squares", "plain_cosine")?.colour(place))
            .series(Series::from_table("", &rows, "sum_of_squares", "independent")?.theory().colour(place));
    }
    let rows = part(sharpness, &[("seq", 20usize.into())]);
    plot = plot.series(Series::from_table("centred, 20 tokens", &rows, "sum_of_squares", "centred_cosine")?.colour(OTHER + 4));
    // At every length and sharpness the plain cosine is that of independent heads, while the centred one stays near 0.
    let (plain_of, independent, centred) =
        (numbers(sharpness, "plain_cosine")?, numbers(sharpness, "independent")?, numbers(sharpness, "centred_cosine")?);
    let follows = plain_of.iter().zip(&independent).all(|(a, b)| (a / b - 1.0).abs() < 0.25);
    let mut figures = vec![
        CheckedFigure::new("head_similarity", "How alike untrained heads are, by three measures")
            .title("The plain cosine of two heads measures sharpness, not likeness", follows && centred.iter().all(|c| c.abs() < 0.1))
            .panel(bars)
            .panel(plot)
            .shows("a: whiskers: 95 % of untrained models. b: scores times 0.01 to 8; dashed: 1 / (tokens \u{d7} sum of squares).")
            .drawn(),
    ];
    if let Some(maps) = tables.find("head_maps") {
        let count = numbers(maps, "head")?.into_iter().fold(0.0, f64::max) as usize + 1;
        let maps =
            (0..count).map(|h| map(&format!("head {h}"), &part(maps, &[("head", h.into())]), "weight")).collect::<Result<Vec<_>>>()?;
        let cosine = joined(&table, &[("measure", "centred_cosine".into()), ("heads", count.into())], "mean");
        figures.push(
            CheckedFigure::grid("head_maps", "The heads of one untrained model", maps, 4)
                .title("The heads of one untrained model look different because they are random", cosine.abs() < 0.05)
                .shows("First draw.")
                .drawn(),
        );
    }
    Ok(figures)
}
