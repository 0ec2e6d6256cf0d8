//! What the plain cosine of two heads measures.

use crate::drawing::{OTHER, joined, map, part, with};
use crate::error::Result;
use regard_plot::figure::{Axis, BarPlot, Figure, LinePlot, Names, Series, numbers, texts};
use regard_plot::{Tables, Value};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
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
    let mut figures = vec![Figure::new("head_similarity", "The plain cosine of two heads measures sharpness, not likeness").panel(bars).panel(plot).caption(
        "Left: means over many untrained models, whiskers hold 95 % of them. Right: the same heads with their scores multiplied by 0.01 to 8; dashed: 1 / (tokens x sum of squares).",
    )];
    if let Some(maps) = tables.find("head_maps") {
        let count = numbers(maps, "head")?.into_iter().fold(0.0, f64::max) as usize + 1;
        let maps =
            (0..count).map(|h| map(&format!("head {h}"), &part(maps, &[("head", h.into())]), "weight")).collect::<Result<Vec<_>>>()?;
        figures.push(
            Figure::grid("head_maps", "The heads of one untrained model", maps, 4)
                .caption("Weights of each head of the first draw. They look different because they are random."),
        );
    }
    Ok(figures)
}
