//! Axes: from data to places, round ticks, and number formats.

/// How values are spread along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Equal steps.
    #[default]
    Linear,
    /// Equal factors, ticks at powers of ten.
    Log10,
    /// Equal factors, ticks at powers of two: for sizes such as `d_{k}`.
    Log2,
}

/// An axis, described: its title with the unit, its scale, and what is not left to the data.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// What is measured, with its unit; `d_{k}` sets a subscript.
    pub title: String,
    /// How values are spread.
    pub scale: Scale,
    /// First and last value; from the data where `None`.
    pub limits: Option<(f64, f64)>,
    /// Where to put ticks; chosen where `None`.
    pub ticks: Option<Vec<f64>>,
}

impl Axis {
    /// A linear axis.
    pub fn linear(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// A logarithmic axis with ticks at powers of ten.
    pub fn log10(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log10, ..Self::default() }
    }

    /// A logarithmic axis with ticks at powers of two.
    pub fn log2(title: impl Into<String>) -> Self {
        Self { title: title.into(), scale: Scale::Log2, ..Self::default() }
    }

    /// Fix the first and last value.
    pub fn limits(mut self, low: f64, high: f64) -> Self {
        self.limits = Some((low, high));
        self
    }

    /// Put ticks here.
    pub fn ticks(mut self, at: impl Into<Vec<f64>>) -> Self {
        self.ticks = Some(at.into());
        self
    }
}

/// A tick: its value, and its label in the markup of drawings (empty for a minor one).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) label: String,
}

/// An axis with its limits and ticks settled.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    scale: Scale,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<Tick>,
}

/// How the limits follow from the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Margin on both sides.
    Padded,
    /// From tick to tick, and from zero where the data is not far from it.
    Ticks,
    /// Exactly the data.
    Tight,
}

impl Scale {
    fn forward(self, x: f64) -> f64 {
        match self {
            Self::Linear => x,
            Self::Log10 => x.log10(),
            Self::Log2 => x.log2(),
        }
    }

    fn backward(self, x: f64) -> f64 {
        match self {
            Self::Linear => x,
            Self::Log10 => 10f64.powf(x),
            Self::Log2 => x.exp2(),
        }
    }

    /// Can the value be shown at all?
    pub(crate) fn shows(self, x: f64) -> bool {
        x.is_finite() && (self == Self::Linear || x > 0.0)
    }
}

impl Range {
    /// Settle an axis for this data; about `wanted` ticks.
    pub(crate) fn new(axis: &Axis, data: impl IntoIterator<Item = f64>, fit: Fit, wanted: usize) -> Self {
        let scale = axis.scale;
        let (mut low, mut high) = data
            .into_iter()
            .filter(|&x| scale.shows(x))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(scale.forward(x)), b.max(scale.forward(x))));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low <= 1e-12 * high.abs().max(low.abs()).max(1e-300) {
            // One value: a margin around it.
            let margin = if scale == Scale::Linear { (0.1 * high.abs()).max(1e-3) } else { 0.5 };
            (low, high) = (low - margin, high + margin);
        }
        let fixed = axis.limits.filter(|&(a, b)| scale.shows(a) && scale.shows(b) && a < b);
        match fixed {
            Some((a, b)) => (low, high) = (scale.forward(a), scale.forward(b)),
            None => (low, high) = Self::fitted(scale, low, high, fit, wanted),
        }
        let ticks = match &axis.ticks {
            Some(at) => at.iter().copied().filter(|&x| scale.shows(x)).map(|value| Tick { value, label: number(value) }).collect(),
            None => Self::chosen(scale, low, high, wanted),
        };
        let slack = 1e-9 * (high - low);
        let inside = |t: &Tick| {
            let x = scale.forward(t.value);
            x >= low - slack && x <= high + slack
        };
        Self { scale, low, high, ticks: ticks.into_iter().filter(inside).collect() }
    }

    fn fitted(scale: Scale, low: f64, high: f64, fit: Fit, wanted: usize) -> (f64, f64) {
        let width = high - low;
        match (fit, scale) {
            (Fit::Tight, _) => (low, high),
            (Fit::Padded, Scale::Linear) => (low - 0.04 * width, high + 0.04 * width),
            (Fit::Padded, _) => (low - 0.05 * width, high + 0.05 * width),
            (Fit::Ticks, Scale::Linear) => {
                let low = if low >= 0.0 && low < 0.35 * high { 0.0 } else { low };
                let high = if high <= 0.0 && high > 0.35 * low { 0.0 } else { high };
                let step = step(high - low, wanted);
                ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step)
            }
            // Logarithmic: a margin of a twentieth, but end at a power where one is near.
            (Fit::Ticks, _) => {
                let near = |x: f64, outwards: f64| if (x - outwards).abs() <= 0.12 * width.max(1.0) { outwards } else { x };
                (near(low - 0.05 * width, low.floor()), near(high + 0.05 * width, high.ceil()))
            }
        }
    }

    fn chosen(scale: Scale, low: f64, high: f64, wanted: usize) -> Vec<Tick> {
        match scale {
            Scale::Linear => linear_ticks(low, high, wanted),
            Scale::Log10 => decade_ticks(low, high, wanted),
            Scale::Log2 => {
                let (first, last) = ((low - 1e-9).ceil() as i64, (high + 1e-9).floor() as i64);
                let every = ((last - first + 1).max(1) as usize).div_ceil(wanted.max(2) + 2) as i64;
                (first..=last)
                    .filter(|p| (p - first) % every == 0)
                    .map(|p| Tick { value: (p as f64).exp2(), label: number((p as f64).exp2()) })
                    .collect()
            }
        }
    }

    /// Where a value lies, as a share of the axis (outside 0..1 beyond its ends); `None` where it cannot be shown.
    pub(crate) fn share(&self, x: f64) -> Option<f64> {
        self.scale.shows(x).then(|| (self.scale.forward(x) - self.low) / (self.high - self.low))
    }

    /// The value at a share of the axis.
    pub(crate) fn value(&self, share: f64) -> f64 {
        self.scale.backward(self.low + share * (self.high - self.low))
    }

    /// First and last value.
    pub(crate) fn ends(&self) -> (f64, f64) {
        (self.value(0.0), self.value(1.0))
    }
}

/// A step of 1, 2, 2.5 or 5 times a power of ten that cuts `width` into about `wanted` parts.
fn step(width: f64, wanted: usize) -> f64 {
    let raw = width / wanted.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let unit = raw / power;
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|n| *n >= unit * 0.95).unwrap_or(10.0);
    nice * power
}

fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<Tick> {
    let step = step(high - low, wanted);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    let count = (last - first).clamp(0.0, 1000.0) as i64;
    let values: Vec<f64> = (0..=count).map(|i| (first + i as f64) * step).map(|x| if x.abs() < step * 1e-6 { 0.0 } else { x }).collect();
    let largest = values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let scientific = largest >= 1e6 || (largest > 0.0 && largest < 1e-3);
    let unit = step / 10f64.powf(step.log10().floor());
    // A step of 2.5 needs one decimal more than its power of ten says, a step of 250 none.
    let extra = if (unit - 2.5).abs() < 1e-6 { 1.0 } else { 0.0 };
    let decimals = (extra - step.log10().floor()).max(0.0) as usize;
    let label = |x: f64| if scientific { power_of_ten(x, largest) } else { fixed(x, decimals) };
    values.into_iter().map(|value| Tick { value, label: label(value) }).collect()
}

fn decade_ticks(low: f64, high: f64, wanted: usize) -> Vec<Tick> {
    let (first, last) = ((low - 1e-9).ceil() as i64, (high + 1e-9).floor() as i64);
    let decades = (last - first + 1).max(0) as usize;
    if decades < 2 {
        // Less than a decade between two powers: label 1, 2, 5.
        return (first - 1..=last)
            .flat_map(|p| (1..10).map(move |d| (p, d)))
            .map(|(p, d)| {
                let value = f64::from(d) * 10f64.powi(p as i32);
                let label = if matches!(d, 1 | 2 | 5) { number(value) } else { String::new() };
                Tick { value, label }
            })
            .collect();
    }
    let every = decades.div_ceil(wanted.max(2) + 1) as i64;
    let plain = first >= -3 && last <= 4;
    let mut ticks = Vec::new();
    for p in first - 1..=last {
        let value = 10f64.powi(p as i32);
        let shown = p.rem_euclid(every) == 0;
        let label = if plain { number(value) } else { format!("10^{{{}}}", integer(p)) };
        ticks.push(Tick { value, label: if shown { label } else { String::new() } });
        if decades <= 4 {
            ticks.extend((2..10).map(|d| Tick { value: f64::from(d) * value, label: String::new() }));
        }
    }
    ticks
}

fn integer(p: i64) -> String {
    if p < 0 { format!("\u{2212}{}", -p) } else { p.to_string() }
}

/// `2.5 x 10^{-5}`, with the power of `largest`.
fn power_of_ten(x: f64, largest: f64) -> String {
    if x == 0.0 {
        return "0".to_owned();
    }
    let p = largest.log10().floor() as i64;
    let mantissa = x / 10f64.powi(p as i32);
    let digits = trimmed(&fixed(mantissa, 2));
    if digits == "1" { format!("10^{{{}}}", integer(p)) } else { format!("{digits}\u{00d7}10^{{{}}}", integer(p)) }
}

fn trimmed(s: &str) -> String {
    if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s.to_owned() }
}

/// A number with the given decimals, a true minus, and commas from 10,000 on.
pub(crate) fn fixed(x: f64, decimals: usize) -> String {
    let digits = format!("{:.decimals$}", x.abs());
    let (whole, rest) = digits.split_once('.').map_or((digits.as_str(), None), |(w, r)| (w, Some(r)));
    let mut out = String::new();
    if x < 0.0 && digits.bytes().any(|b| b.is_ascii_digit() && b != b'0') {
        out.push('\u{2212}');
    }
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && whole.len() > 4 && (whole.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    if let Some(rest) = rest {
        out.push('.');
        out.push_str(rest);
    }
    out
}

/// A value for ticks, in drawing markup: short and exact for round numbers.
pub(crate) fn number(x: f64) -> String {
    if !x.is_finite() {
        return plain_number(x);
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e9).contains(&size) { power_of_ten(x, size) } else { trimmed(&fixed(x, 4)) }
}

/// A value for people to read beside a mark or in a table: four significant digits, without markup.
pub(crate) fn plain_number(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "\u{221e}".to_owned() } else { "\u{2212}\u{221e}".to_owned() };
    }
    let size = x.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e7).contains(&size) {
        let text = format!("{size:.3e}");
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        let sign = if x < 0.0 { "\u{2212}" } else { "" };
        return format!("{sign}{}e{}", trimmed(mantissa), power.replace('-', "\u{2212}"));
    }
    if size.fract() == 0.0 {
        return fixed(x, 0);
    }
    let decimals = (3 - size.log10().floor() as i64).clamp(0, 8) as usize;
    fixed(x, decimals)
}

/// A value in three significant digits, without trailing zeros: beside bars and in the middle of text.
pub(crate) fn short_number(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() || size == 0.0 || !(1e-4..1e7).contains(&size) || size.fract() == 0.0 {
        return plain_number(x);
    }
    let decimals = (2 - size.log10().floor() as i64).clamp(0, 8) as usize;
    trimmed(&fixed(x, decimals))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(range: &Range) -> Vec<&str> {
        range.ticks.iter().map(|t| t.label.as_str()).filter(|l| !l.is_empty()).collect()
    }

    #[test]
    fn linear_ticks_are_round_and_enclose_the_data() {
        let range = Range::new(&Axis::linear("y"), [0.03, 0.97], Fit::Ticks, 5);
        assert_eq!(range.ends(), (0.0, 1.0));
        assert_eq!(labels(&range), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        let range = Range::new(&Axis::linear("y"), [-120.0, 88.0], Fit::Ticks, 5);
        assert_eq!(labels(&range), ["\u{2212}150", "\u{2212}100", "\u{2212}50", "0", "50", "100"]);
        assert_eq!(labels(&Range::new(&Axis::linear("step"), [0.0, 120.0], Fit::Tight, 5)), ["0", "25", "50", "75", "100"]);
        assert_eq!(labels(&Range::new(&Axis::linear("y"), [0.0, 12.0], Fit::Tight, 5)), ["0.0", "2.5", "5.0", "7.5", "10.0"]);
    }

    #[test]
    fn powers_of_two_and_ten_are_labelled_as_such() {
        let range = Range::new(&Axis::log2("d"), [4.0, 4096.0], Fit::Padded, 5);
        assert_eq!(labels(&range), ["4", "16", "64", "256", "1024", "4096"]);
        let range = Range::new(&Axis::log10("g"), [2e-11, 3.0], Fit::Ticks, 5);
        assert!(labels(&range).contains(&"10^{\u{2212}10}") || labels(&range).contains(&"10^{\u{2212}9}"), "{:?}", labels(&range));
        assert!(labels(&range).len() <= 7);
    }

    #[test]
    fn values_that_cannot_be_shown_are_left_out() {
        let range = Range::new(&Axis::log10("g"), [f64::NAN, 0.0, -1.0, 1.0, 100.0], Fit::Tight, 5);
        assert_eq!(range.ends(), (1.0, 100.0));
        assert_eq!(range.share(0.0), None);
        assert_eq!(range.share(10.0), Some(0.5));
        let empty = Range::new(&Axis::linear("y"), [f64::NAN], Fit::Ticks, 5);
        assert!(empty.low < empty.high);
        let one = Range::new(&Axis::linear("y"), [3.0], Fit::Ticks, 5);
        assert!(one.ends().0 < 3.0 && one.ends().1 > 3.0);
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(plain_number(0.993_73), "0.9937");
        assert_eq!(plain_number(-12.5), "\u{2212}12.50");
        assert_eq!(plain_number(65536.0), "65,536");
        assert_eq!(plain_number(1.96e-11), "1.96e\u{2212}11");
        assert_eq!(plain_number(f64::NAN), "NaN");
        assert_eq!(number(0.00002), "2\u{00d7}10^{\u{2212}5}");
        assert_eq!(number(0.25), "0.25");
        assert_eq!(
            [short_number(0.188), short_number(0.006), short_number(12.0), short_number(0.98765)],
            ["0.188", "0.006", "12", "0.988"]
        );
        assert_eq!(fixed(-0.001, 1), "0.0");
    }
}
