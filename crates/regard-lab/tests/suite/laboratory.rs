//! The experiments against what is known about them.

use super::{report, table};
use regard_lab::experiments::{
    BenchConfig, ChecksConfig, Dtype, EntropyConfig, HeadsConfig, Loss, Numbers, PATTERNS, ParityConfig, PatternsConfig, RobustnessConfig,
    SweepConfig, Unwatched,
};
use regard_lab::published::MINI_REPORT;
use regard_lab::report::render;
use regard_lab::{EXPERIMENTS, Error, Table, Tables, Value, judging};

/// The row in which each column has its value.
fn row<'t>(table: &'t Table, at: &[(&str, Value)]) -> &'t [Value] {
    let here = |row: &&Vec<Value>| at.iter().all(|(column, value)| table.value(row, column) == value);
    table.rows.iter().find(here).unwrap_or_else(|| panic!("{} has no row with {at:?}", table.name))
}

fn number(table: &Table, at: &[(&str, Value)], column: &str) -> f64 {
    table.number(row(table, at), column)
}

#[test]
fn the_first_documents_csv_is_reproduced_digit_for_digit() {
    let sweep = table("attention_sweep_results");
    assert_eq!(sweep.rows.len(), MINI_REPORT.len());
    for (d_k, scaled, known) in MINI_REPORT {
        let at = [("d_k", d_k.into()), ("scaled", scaled.into())];
        for (column, known) in ["mean_max_weight", "mean_entropy", "grad_norm_q", "grad_norm_k"].into_iter().zip(known) {
            let got = number(sweep, &at, column);
            assert!((got - known).abs() <= 2e-6, "d_k = {d_k}, scaled {scaled}, {column}: {got} instead of {known}");
        }
    }
    // The four numbers of its text.
    let headline = |scaled: bool, column| number(sweep, &[("d_k", 256usize.into()), ("scaled", scaled.into())], column);
    let shown = [
        headline(false, "mean_max_weight"),
        headline(true, "mean_max_weight"),
        headline(false, "mean_entropy"),
        headline(true, "mean_entropy"),
    ];
    assert_eq!(shown.map(|x| format!("{x:.4}")), ["0.9942", "0.3680", "0.0296", "1.7256"]);
}

#[test]
fn every_mean_lies_within_four_standard_errors_of_its_exact_expectation() {
    let mut judged = 0;
    for name in ["attention_robustness_summary", "attention_entropy"] {
        let table = table(name);
        for row in &table.rows {
            let deviation = table.number(row, "deviation");
            if !deviation.is_nan() {
                assert!(deviation.abs() < 4.0, "{name}: {row:?}");
                judged += 1;
            }
        }
    }
    // 2 lengths x 5 widths x 2 scales x 3 statistics, and 7 widths x 2 scales.
    assert_eq!(judged, 60 + 14);
}

#[test]
fn published_numbers_stand_where_twenty_thousand_draws_put_them() {
    // Percentiles of an independent program with 4000 to 20000 draws.
    let robustness = table("attention_robustness_summary");
    for (d_k, scaled, statistic, known) in [
        (256usize, false, "max_weight", 93.4),
        (256, true, "max_weight", 59.4),
        (256, false, "entropy", 6.9),
        (256, true, "entropy", 48.1),
        (256, false, "norm_dq", 8.3),
        (256, true, "norm_dq", 23.8),
        (64, false, "norm_dq", 75.5),
        (64, true, "norm_dq", 4.9),
        (16, true, "max_weight", 98.5),
        (16, true, "entropy", 1.7),
        (64, true, "max_weight", 2.2),
        (64, true, "entropy", 97.3),
    ] {
        let at = [("seq", 8usize.into()), ("d_k", d_k.into()), ("scaled", scaled.into()), ("statistic", statistic.into())];
        let got = number(robustness, &at, "percentile");
        assert!((got - known).abs() < 2.0, "d_k = {d_k}, scaled {scaled}, {statistic}: {got} instead of {known}");
    }
    let entropy = table("attention_entropy");
    for (d_k, known) in
        [(8usize, [67.8, 84.5]), (32, [10.1, 33.1]), (64, [42.0, 26.0]), (128, [27.9, 9.1]), (256, [13.0, 26.1]), (512, [8.7, 40.6])]
    {
        for (scaled, known) in [false, true].into_iter().zip(known) {
            let got = number(entropy, &[("d_k", d_k.into()), ("scaled", scaled.into())], "percentile");
            assert!((got - known).abs() < 2.5, "d_k = {d_k}, scaled {scaled}: {got} instead of {known}");
        }
    }
}

#[test]
fn gradients_do_not_vanish_but_the_median_row_does() {
    let gradients = table("attention_gradients");
    let get = |d_k: usize, scaled: bool, column: &str| number(gradients, &[("d_k", d_k.into()), ("scaled", scaled.into())], column);
    // Known from another program, with 1500 to 4000 draws.
    for (d_k, norm, median, holding) in
        [(4, 1.72, 0.38, 0.40), (16, 3.09, 0.55, 0.32), (64, 4.55, 0.26, 0.18), (256, 6.01, 1.6e-2, 0.095), (1024, 7.08, 2.0e-5, 0.047)]
    {
        assert!((get(d_k, false, "grad_norm_q") / norm - 1.0).abs() < 0.06, "d_k = {d_k}: {}", get(d_k, false, "grad_norm_q"));
        let ratio = get(d_k, false, "row_dq_median") / median;
        assert!((0.4..2.5).contains(&ratio), "d_k = {d_k}: median row {}", get(d_k, false, "row_dq_median"));
        assert!((get(d_k, false, "rows_holding_90_percent") - holding).abs() < 0.04);
        assert!((get(d_k, true, "grad_norm_q") - 1.0).abs() < 0.12);
    }
    assert!((get(4096, false, "rows_below_1e_8") - 0.59).abs() < 0.05);
    assert!(get(4096, false, "row_dq_median") < 1e-9 && get(4096, true, "row_dq_median") > 0.25);
}

#[test]
fn verdicts_are_the_known_ones() {
    let verdict = |part: &str| -> &'static str {
        let claims = table("published_claims");
        let found: Vec<_> = claims.rows.iter().filter(|row| claims.text(row, "claim").contains(part)).collect();
        let [row] = found[..] else { panic!("{} claims with {part:?}", found.len()) };
        claims.text(row, "verdict")
    };
    for (part, known) in [
        ("0.9942", "one draw"),
        ("0.3680", "one draw"),
        ("its CSV file", "holds"),
        ("the sharper attention", "holds"),
        ("0.8, 0.95, 0.99, 1.0", "illustrative"),
        ("gradients vanish for large", "holds in part"),
        ("the gradients are about 0", "holds in part"),
        ("vanish for non-dominant", "holds"),
        ("stability of optimisation", "holds in part"),
        ("are larger without the scale", "holds"),
        ("its table of entropies", "holds"),
        ("the entropy falls", "holds"),
        ("costs n^{2}", "holds"),
        ("lower-triangular", "holds"),
        ("gives NaN", "holds"),
        ("0.12, 0.17, 0.19", "holds"),
        ("learn different patterns", "wrong as worded"),
        ("single head", "wrong as worded"),
        ("grow with sqrt", "holds"),
        ("-50 to 50", "holds"),
        ("makes little difference", "wrong as worded"),
        ("max |x.grad|", "wrong as worded"),
        ("hide with -inf", "holds"),
        ("as wide as the values", "holds"),
        ("convex combination", "holds in part"),
        ("from scratch differs", "holds"),
        ("near-perfect training loss", "holds"),
        ("fails at inference", "holds"),
        ("sees only the future, is broken", "holds in part"),
        ("from seeing the future", "holds"),
        ("without the scale the model cannot learn", "wrong"),
        ("collapses to a one-hot choice", "holds in part"),
        ("several experts", "holds in part"),
        ("four patterns", "holds in part"),
        ("patterns between two", "holds"),
        ("sinusoidal encodings", "holds"),
        ("apply the same operation", "holds in part"),
        ("loses the global context", "holds"),
        ("broadcast from important", "holds in part"),
        ("phrase-level", "holds"),
        ("a query asks", "holds"),
        ("times W^{O}", "holds"),
        ("not after it", "holds"),
        ("outputs with and without", "holds"),
        ("replaces a toy dictionary", "holds"),
        ("k nearest neighbours", "holds in part"),
        ("multi-query", "holds"),
        ("dropout can be added", "holds"),
        ("can overflow", "holds"),
        ("shows global attention", "holds"),
        ("helps noticeably", "holds"),
        ("linear region", "wrong as worded"),
        ("adjacent words", "holds"),
        ("subject-verb", "undecided"),
        ("synonyms", "holds"),
        ("observe the failure", "holds"),
    ] {
        assert_eq!(verdict(part), known, "{part}");
    }
    assert_eq!(table("published_claims").rows.len(), 58);
}

#[test]
fn a_verdict_follows_the_tables() {
    let mut tables = report().clone();
    let mut other = table("attention_entropy").clone();
    let at = other.position("percentile").unwrap();
    for row in &mut other.rows {
        (row[at], row[at + 1], row[at + 2]) = (0.1.into(), 0.05.into(), 0.15.into());
    }
    tables.put(other);
    let judged = judging::judge(&tables).unwrap();
    let (_, entropies) = judged.iter().find(|(_, j)| j.claim.contains("table of entropies")).unwrap();
    assert_eq!(entropies.verdict.words(), "lucky draw");
    // Learning is judged by the bigram model of the same text.
    let mut other = table("mask_training_baselines").clone();
    let (name, value) = (other.position("name").unwrap(), other.position("value").unwrap());
    for row in other.rows.iter_mut().filter(|row| row[name] == "bigram".into()) {
        row[value] = 1.0.into();
    }
    tables.put(other);
    let judged = judging::judge(&tables).unwrap();
    let (_, learns) = judged.iter().find(|(_, j)| j.claim.contains("cannot learn")).unwrap();
    assert_eq!(learns.verdict.words(), "holds in part", "{}", learns.because);
    assert!(learns.because.contains("A bigram model, without attention, has 1,"), "{}", learns.because);
    // A prefix loss above uniform guessing decides, whatever the causal model's loss is.
    let mut other = table("mask_training").clone();
    let (variant, prefix) = (other.position("variant").unwrap(), other.position("prefix_only_loss").unwrap());
    for row in other.rows.iter_mut().filter(|row| row[variant] == "causal".into()) {
        (row[prefix], row[prefix + 1], row[prefix + 2]) = (3.0.into(), 2.9.into(), 3.1.into());
    }
    tables.put(other);
    let judged = judging::judge(&tables).unwrap();
    let (_, fails) = judged.iter().find(|(_, j)| j.claim.contains("fails at inference")).unwrap();
    assert_eq!(fails.verdict.words(), "holds", "{}", fails.because);
}

#[test]
fn every_claim_of_the_files_is_judged_and_names_its_place() {
    let claims: usize = regard_lab::claims::embedded().iter().map(|source| source.claims.len()).sum();
    let verdicts = table("published_claims");
    // Memory, and the time of a power, are judged only where times are measured.
    assert_eq!(verdicts.rows.len() + 2, claims);
    assert!(verdicts.rows.iter().all(|row| !verdicts.text(row, "place").is_empty()));
    let html = render(report()).unwrap().0.html().unwrap();
    assert!(html.contains("Methods: the rule of each verdict") && html.contains("Testing Your Understanding, check 4"));
}

#[test]
fn a_folder_of_claims_is_judged_beside_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let file = r#"
        title = "A lecture"
        name = "lecture"
        [[claim]]
        id = "half"
        section = "slide 3"
        statement = "at d_{k} = 64 the largest of 8 weights is at least a half without the scale"
        experiment = "robustness"
        because = "It is {x} (exact)."
        [claim.quantity]
        x = { table = "attention_robustness_summary", where = { seq = 8, d_k = 64, scaled = false, statistic = "max_weight" }, column = "exact" }
        [[claim.rule]]
        quantity = "x"
        above = 0.5
    "#;
    std::fs::write(folder.path().join("lecture.toml"), file).unwrap();
    let more = regard_lab::claims::read(folder.path()).unwrap();
    let judged = judging::judge_with(report(), &more).unwrap();
    let (section, mine) = judged.iter().find(|(_, j)| j.document == "lecture").unwrap();
    assert_eq!((*section, mine.verdict.words(), mine.because.as_str()), ("robustness", "holds", "It is 0.875 (exact)."));
    let (page, _) = regard_lab::report::render_with(report(), &more).unwrap();
    assert!(page.html().unwrap().contains("A lecture"));
}

#[test]
fn head_cosine_is_that_of_independent_heads() {
    let heads = table("head_diversity");
    for (count, cosine, centred) in [(2usize, 0.188, 0.006), (4, 0.189, 0.006), (8, 0.195, 0.005)] {
        let get = |measure: &str, column| number(heads, &[("heads", count.into()), ("measure", measure.into())], column);
        assert!((get("plain_cosine", "mean") - cosine).abs() < 0.005);
        assert!((get("plain_cosine", "independent") - get("plain_cosine", "mean")).abs() < 0.012);
        assert!((get("centred_cosine", "mean") - centred).abs() < 0.006);
    }
    assert_eq!(heads.value(row(heads, &[("heads", 1usize.into())]), "mean"), &Value::Missing, "one head has no pair");
    let sharpness = table("head_sharpness");
    for seq in [5usize, 20, 100] {
        let flat = number(sharpness, &[("seq", seq.into()), ("factor", 0.01.into())], "plain_cosine");
        let sharp = number(sharpness, &[("seq", seq.into()), ("factor", 8.0.into())], "plain_cosine");
        assert!(flat > 0.999 && sharp < 0.25, "{flat} {sharp}");
    }
}

#[test]
fn patterns_hide_what_they_should() {
    let (patterns, maps) = (table("attention_patterns"), table("attention_patterns_maps"));
    for (pattern, known) in PATTERNS.into_iter().zip([1024, 528, 212, 528, 496, 200, 448, 177]) {
        assert_eq!(number(patterns, &[("pattern", pattern.into())], "pairs"), f64::from(known), "{pattern}");
        for row in maps.rows_where("pattern", pattern) {
            if *maps.value(row, "visible") == false.into() {
                assert_eq!(maps.number(row, "weight"), 0.0, "{pattern}");
            }
        }
    }
    let empty = table("attention_empty_rows");
    let last = empty.rows.last().unwrap();
    assert!(empty.number(last, "textbook_sum").is_nan());
    assert_eq!((empty.number(last, "regard_out"), empty.number(last, "lse")), (0.0, f64::NEG_INFINITY));
    assert!(empty.rows.iter().all(|row| *empty.value(row, "hidden_nan_ignored") == true.into()));
}

#[test]
fn four_questions_have_their_answers() {
    let growth = table("check_growth");
    for row in &growth.rows {
        assert!((growth.number(row, "ratio") - 1.0).abs() < 0.03, "{row:?}");
    }
    assert!((number(growth, &[("d_k", 512usize.into())], "within_50") - 0.973).abs() < 0.004);
    assert!((number(growth, &[("d_k", 512usize.into())], "largest") - 50.6).abs() < 1.0);
    let ranks = table("check_rank");
    for (case, known) in [
        ("values of rank 3", 3),
        ("uniform weights", 1),
        ("softmax, d_k = 1", 12),
        ("rank-2 tokens, heads: 1", 2),
        ("rank-2 tokens, heads: 2", 4),
        ("rank-2 tokens, heads: 4", 8),
        ("rank-2 tokens, heads: 8", 12),
    ] {
        assert_eq!(number(ranks, &[("case", case.into())], "output_rank"), f64::from(known), "{case}");
    }
    let masking = table("check_masking");
    assert_eq!(number(masking, &[("method", "-inf before the softmax (Regard)".into())], "leak"), 0.0);
    assert!(number(masking, &[("method", "0 before the softmax".into())], "leak") > 0.01);
}

#[test]
fn the_page_is_made_of_the_tables_alone() {
    let written: Vec<Table> = report().all().iter().map(|t| Table::from_csv(&t.name, &t.to_csv()).expect("a table reads back")).collect();
    for (table, read) in report().all().iter().zip(&written) {
        assert_eq!(String::from_utf8(table.to_csv()), String::from_utf8(read.to_csv()), "{} changes when it is read back", table.name);
    }
    let (page, figures) = render(report()).unwrap();
    let (again, _) = render(&Tables::from(written)).unwrap();
    let html = page.html().unwrap();
    assert_eq!(html, again.html().unwrap());
    for id in ["sweep", "robustness", "gradients", "entropy", "patterns", "heads", "checks", "parity"] {
        assert!(html.contains(&format!("id=\"{id}\"")), "no section {id}");
    }
    for figure in &figures {
        let svg = figure.svg().unwrap();
        // Cells and marks carry their values; a large map is a picture whose colours the page reads back.
        assert!(svg.contains("<title>") || svg.contains("data-map="), "{} has no values to hover over", figure.name);
    }
    assert!(!html.contains("NaN percentile") && !html.contains("NaNth"), "a verdict lacks a number");
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut tables =
                SweepConfig { seeds: 300, numbers: Numbers::Regard, loss: Loss::Unit, ..SweepConfig::default() }.run(&Unwatched).unwrap();
            tables.extend(RobustnessConfig { seeds: 50, d_k: vec![16, 64], seq: vec![8], seed: 3 }.run(&Unwatched).unwrap());
            tables.extend(HeadsConfig { seeds: 40, ..HeadsConfig::default() }.run(&Unwatched).unwrap());
            tables.extend(ChecksConfig { seeds: 40, d_k: vec![4, 64], seed: 3 }.run(&Unwatched).unwrap());
            tables.iter().map(|t| (t.name.clone(), String::from_utf8(t.to_csv()).unwrap())).collect::<Vec<_>>()
        })
    };
    let alone = run(1);
    assert_eq!(alone, run(3));
    assert_ne!(
        alone[0].1,
        SweepConfig { seeds: 300, seed: 43, numbers: Numbers::Regard, loss: Loss::Unit, ..SweepConfig::default() }.run(&Unwatched).unwrap()
            [0]
        .to_csv()
        .into_iter()
        .map(char::from)
        .collect::<String>()
    );
}

#[test]
fn every_table_says_where_it_came_from() {
    for table in report().all() {
        for key in ["regard", "command", "seed", "simd"] {
            assert!(table.origin.iter().any(|(k, v)| k == key && !v.is_empty()), "{} does not record {key}", table.name);
        }
    }
}

#[test]
fn stored_answers_agree_and_a_disagreement_is_seen() {
    let mut tables = ParityConfig { stored: true, ..ParityConfig::default() }.run(&Unwatched).unwrap();
    let parity = EXPERIMENTS.iter().find(|experiment| experiment.id() == "parity").unwrap();
    let agrees = |tables: &[Table]| parity.agrees(tables).unwrap();
    assert!(agrees(&tables) && tables[0].rows.len() >= 38);
    let at = tables[0].position("agrees").unwrap();
    tables[0].rows[5][at] = false.into();
    assert!(!agrees(&tables));
}

#[test]
fn the_bench_measures_what_it_says() {
    let config = BenchConfig {
        heads: 2,
        kv_heads: Some(1),
        seq_q: Some(40),
        seq_kv: Some(70),
        head_dim: 8,
        causal: true,
        seconds: 0.01,
        ..BenchConfig::default()
    };
    let table = &config.run(&Unwatched).unwrap()[0];
    let value = |quantity: &str| number(table, &[("quantity", quantity.into())], "value");
    assert!(value("time, best") > 0.0 && value("time, best") <= value("time, median"));
    // Causal, 40 queries at the first 40 of 70 keys: 820 pairs per head, 4 operations per pair and dimension.
    let work = 4.0 * 2.0 * 820.0 * 8.0;
    assert!((value("arithmetic") * value("time, best") * 1e6 / work - 1.0).abs() < 1e-9);
    assert!((value("q, k, v and out") * 1e6 - 4.0 * (2.0 * 640.0 + 2.0 * 560.0)).abs() < 1e-6);
}

#[test]
fn no_share_of_a_ceiling_exceeds_the_whole() {
    // Decoding from tensors that a cache holds, and a square that registers bound, in every type.
    for (seq_q, seq_kv, dtype) in
        [(1, 2048, Dtype::F32), (256, 256, Dtype::F32), (256, 256, Dtype::F64), (256, 256, Dtype::F16), (256, 256, Dtype::Bf16)]
    {
        let config = BenchConfig { heads: 2, seq_q: Some(seq_q), seq_kv: Some(seq_kv), dtype, seconds: 0.05, ..BenchConfig::default() };
        let table = &config.run(&Unwatched).unwrap()[0];
        for quantity in ["time, best", "arithmetic", "exponentials", "memory traffic"] {
            let share = number(table, &[("quantity", quantity.into())], "share");
            assert!(share > 0.0 && share <= 100.0, "{quantity}: {share} % at {seq_q} x {seq_kv}");
        }
        assert!(table.caption.contains("bounded by "), "{}", table.caption);
    }
}

#[test]
fn impossible_settings_are_refused_with_their_name() {
    let refused = |result: Result<Vec<Table>, Error>, words: &str| {
        let message = result.expect_err(words).to_string();
        assert!(message.contains(words) && !message.contains('\n'), "{message}");
    };
    let sweep = SweepConfig::default();
    refused(SweepConfig { d_k: vec![4, 0], ..sweep.clone() }.run(&Unwatched), "invalid d_k: 0");
    refused(SweepConfig { d_k: vec![4097], ..sweep.clone() }.run(&Unwatched), "invalid d_k: 4097");
    refused(SweepConfig { d_k: vec![], ..sweep.clone() }.run(&Unwatched), "d_k is an empty list");
    refused(SweepConfig { seq: 1, ..sweep.clone() }.run(&Unwatched), "invalid seq: 1");
    refused(SweepConfig { seeds: 0, ..sweep.clone() }.run(&Unwatched), "invalid seeds: 0");
    refused(SweepConfig { d_k: vec![1], ..sweep }.run(&Unwatched), "at least 16");
    refused(RobustnessConfig { seeds: 1, ..RobustnessConfig::default() }.run(&Unwatched), "invalid seeds: 1");
    refused(RobustnessConfig { seq: vec![], ..RobustnessConfig::default() }.run(&Unwatched), "seq is an empty list");
    refused(EntropyConfig { row_d_k: 0, ..EntropyConfig::default() }.run(&Unwatched), "invalid d_k: 0");
    refused(HeadsConfig { heads: vec![3], ..HeadsConfig::default() }.run(&Unwatched), "a divisor of d_model");
    refused(HeadsConfig { heads: vec![], ..HeadsConfig::default() }.run(&Unwatched), "heads is an empty list");
    refused(PatternsConfig { dilation: 0, ..PatternsConfig::default() }.run(&Unwatched), "invalid dilation: 0");
    refused(PatternsConfig { block: 0, ..PatternsConfig::default() }.run(&Unwatched), "invalid block: 0");
    refused(ChecksConfig { d_k: vec![0], ..ChecksConfig::default() }.run(&Unwatched), "invalid d_k: 0");
    refused(BenchConfig { heads: 6, kv_heads: Some(4), ..BenchConfig::default() }.run(&Unwatched), "a divisor of heads");
    refused(BenchConfig { head_dim: 0, ..BenchConfig::default() }.run(&Unwatched), "invalid head_dim: 0");
}

/// Words that a reader sees outside tables, folded texts and labels of figures included. A word has a letter; in a drawing
/// two, since panels and characters on axes are no words. Hover texts are not counted.
fn words_outside_tables(html: &str) -> usize {
    const WITHIN_A_WORD: [&str; 7] = ["sub", "sup", "code", "strong", "a", "span", "tspan"];
    const UNSEEN: [&str; 4] = ["script", "style", "table", "title"];
    let body = &html[html.find("<body").expect("a body")..];
    let (mut prose, mut drawn) = (String::new(), String::new());
    let (mut unseen, mut drawing) = (0usize, false);
    for piece in body.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split_whitespace().next().unwrap_or("");
        let ends = tag.starts_with('/');
        if UNSEEN.contains(&name) {
            unseen = if ends { unseen - 1 } else { unseen + 1 };
        }
        if name == "svg" {
            drawing = !ends;
        }
        let to = if drawing { &mut drawn } else { &mut prose };
        if !WITHIN_A_WORD.contains(&name) {
            to.push(' ');
        }
        if unseen == 0 {
            to.push_str(text);
        }
    }
    let count = |text: &str, letters: usize| {
        text.split_whitespace().filter(|word| word.chars().filter(char::is_ascii_alphabetic).count() >= letters).count()
    };
    count(&prose, 1) + count(&drawn, 2)
}

#[test]
fn words_are_counted_by_hand() {
    let page = "<html><head><title>no</title></head><body><p>A d<sub>k</sub> of 64 <b>is</b> two</p><table><tr><td>no no</td></tr></table>\
        <details><summary>Answer</summary><p>folded</p></details><svg><text>a</text><text>scaled</text><title>no</title></svg>\
        <script>let no = 1;</script></body></html>";
    assert_eq!(words_outside_tables(page), 8);
}

#[test]
fn the_page_has_at_most_5500_words_outside_tables() {
    let words = words_outside_tables(&render(report()).unwrap().0.html().unwrap());
    // Sections about times, which this report lacks, have about a hundred more.
    assert!((3000..=5400).contains(&words), "{words}");
}
