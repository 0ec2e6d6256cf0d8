//! Drawings: structure, well-formed XML, colours of known cells, the same bytes every time.

use regard_plot::figure::{
    Axis, BarPlot, ColourMap, DRAWN, Figure, FigureError, GraphPlot, HeatPlot, Line, LinePlot, LinkPlot, Names, Norm, Series, Theme,
};

const D_K: [f64; 4] = [4.0, 16.0, 64.0, 256.0];

fn lines() -> Figure {
    let plot = LinePlot::new("Entropy", Axis::log2("head dimension d_{k}"), Axis::linear("entropy (nats)"))
        .series(Series::new("scaled", &D_K, &[1.75, 1.73, 1.72, 1.72]).plus_minus(&[0.05; 4]))
        .series(Series::new("unscaled <b>", &D_K, &[1.29, 0.67, 0.32, 0.15]))
        .series(Series::new("theory", &D_K, &[1.29, 0.67, 0.32, 0.15]).theory())
        .horizontal(8f64.ln(), "ln 8");
    Figure::new("lines", "Lines").panel(plot)
}

fn heat(n: usize) -> HeatPlot {
    let values = (0..n * n).map(|c| (c % n) as f64 / (n - 1) as f64).collect();
    HeatPlot::new("", n, n, values).unwrap()
}

fn parse(svg: &str) -> roxmltree::Document<'_> {
    roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"))
}

fn texts(document: &roxmltree::Document<'_>) -> Vec<String> {
    let text_of = |n: roxmltree::Node<'_, '_>| n.descendants().filter_map(|d| d.is_text().then(|| d.text()).flatten()).collect();
    document.descendants().filter(|n| n.has_tag_name("text")).map(text_of).collect()
}

fn titles(document: &roxmltree::Document<'_>) -> Vec<String> {
    document.descendants().filter(|n| n.has_tag_name("title")).filter_map(|n| n.text()).map(str::to_owned).collect()
}

/// Width, height and RGBA of a PNG.
fn pixels(bytes: &[u8]) -> (usize, usize, Vec<[u8; 4]>) {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::ALPHA);
    let mut reader = decoder.read_info().unwrap();
    let mut data = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut data).unwrap();
    (info.width as usize, info.height as usize, data.chunks_exact(4).map(|p| [p[0], p[1], p[2], p[3]]).collect())
}

#[test]
fn a_line_plot_has_titles_ticks_names_and_values() {
    let svg = lines().svg().unwrap();
    let document = parse(&svg);
    let texts = texts(&document);
    for expected in ["head dimension dk", "entropy (nats)", "Entropy", "4", "16", "64", "256", "scaled", "ln 8", "0.0", "1.0", "2.0"] {
        assert!(texts.iter().any(|t| t == expected), "{expected} is not in {texts:?}");
    }
    let titles = titles(&document);
    assert_eq!(titles.len(), 12, "one value per point");
    assert!(titles.contains(&"scaled\nentropy (nats): 1.750 (1.700 to 1.800)\nhead dimension d_k: 4".to_owned()), "{titles:?}");
    // Twelve targets, eight markers of which four squares are not circles, one band.
    let count = |name: &str| document.descendants().filter(|n| n.has_tag_name(name)).count();
    assert_eq!(count("circle"), 12);
    assert_eq!(document.descendants().filter(|n| n.attribute("fill-opacity") == Some("0.2")).count(), 1);
    assert_eq!(document.descendants().filter(|n| n.has_tag_name("path") && n.attribute("stroke-dasharray").is_some()).count(), 1);
}

#[test]
fn every_kind_of_figure_is_well_formed_and_keeps_its_bytes() {
    let nasty = "<script>alert(\"&'\u{1}\")</script>";
    let bars = || {
        BarPlot::new(nasty, nasty, vec![nasty.to_owned(), "b".to_owned()], Axis::linear(nasty))
            .bars_with_intervals(nasty, vec![1.0, f64::NAN], vec![(0.5, 1.5), (0.0, 0.0)])
            .bars("x", vec![-0.5, 2.0])
            .reference(1.0, nasty)
    };
    let tokens = vec![nasty.to_owned(), "\u{0}\n".to_owned(), " \u{1F600}".to_owned()];
    let figures = [
        lines(),
        Figure::new("bars", nasty).panel(bars()).panel(bars().lying()).caption(nasty).alt(nasty),
        Figure::new("heat", nasty).panel(
            heat(3).tokens(&tokens, &tokens).unwrap().hidden(vec![false, true, false, false, false, true, true, false, true]).unwrap(),
        ),
        Figure::grid("grid", nasty, vec![heat(20), heat(20), heat(20)], 2),
        Figure::new("picture", nasty).panel(heat(100).norm(Norm::Log).value_title(nasty)),
        Figure::new("empty", nasty).panel(LinePlot::new(nasty, Axis::log10(nasty), Axis::log10(nasty))),
        Figure::new("none", ""),
        Figure::new("histogram", "").panel(
            LinePlot::new("", Axis::linear("x"), Axis::linear("share"))
                .series(Series::histogram("h", &[1.0, 2.0, 2.5], 4))
                .vertical(2.0, nasty)
                .names(Names::Legend),
        ),
        Figure::new("points", "").panel(
            LinePlot::new("", Axis::linear("x"), Axis::log10("y"))
                .series(Series::new("p", &[1.0, 2.0, 3.0], &[0.0, f64::NAN, 3.0]).plus_minus(&[1.0, 1.0, 4.0]).line(Line::None)),
        ),
    ];
    for figure in &figures {
        let svg = figure.svg().unwrap();
        let document = parse(&svg);
        assert!(!document.descendants().any(|n| n.has_tag_name("script")), "{}", figure.name);
        assert!(!svg.contains("NaN\"") && !svg.contains("inf\""), "{} has a coordinate that is no number", figure.name);
        assert_eq!(svg, figure.svg().unwrap());
        let png = figure.png(Theme::Light).unwrap();
        assert_eq!(png, figure.png(Theme::Light).unwrap());
        let (width, height, _) = pixels(&png);
        assert!(width >= 24 && height >= 24);
    }
}

#[test]
fn both_files_of_one_layout_are_those_of_two() {
    for figure in [lines(), Figure::new("map", "Map").panel(heat(100)), Figure::grid("grid", "Grid", vec![heat(8), heat(8)], 2)] {
        assert!(figure.files().unwrap() == (figure.svg().unwrap(), figure.png(Theme::Light).unwrap()), "{}", figure.name);
    }
}

#[test]
fn ids_are_used_where_they_are_defined() {
    let figure = Figure::new("f", "t").panel(lines().panels.remove(0)).panel(heat(4).hidden(vec![true; 16]).unwrap());
    let svg = figure.svg().unwrap();
    let document = parse(&svg);
    let defined: Vec<&str> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    for node in document.descendants() {
        for value in node.attributes().filter_map(|a| a.value().strip_prefix("url(#")) {
            assert!(defined.contains(&value.trim_end_matches(')')), "{value} is not defined");
        }
    }
    let mut unique = defined.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), defined.len());
    assert!(defined.len() >= 3);
}

#[test]
fn cells_have_the_colours_of_their_values() {
    let n = 4;
    for (figure, cells) in [(Figure::new("drawn", "").panel(heat(n)), n), (Figure::new("picture", "").panel(heat(80)), 80)] {
        let (width, height, pixels) = pixels(&figure.png(Theme::Light).unwrap());
        let has = |colour: [u8; 3]| pixels.iter().filter(|p| p[..3] == colour).count();
        let (first, last) = (ColourMap::Viridis.colour(0.0), ColourMap::Viridis.colour(1.0));
        let area = width * height / (3 * cells);
        assert!(has(first) > area / 2 && has(last) > area / 2, "{} {} of {area} in {}", has(first), has(last), figure.name);
        // The left column is the first colour, the right one the last: look along the middle row of the map.
        let row = &pixels[height / 3 * width..(height / 3 + 1) * width];
        let place = |c: [u8; 3]| row.iter().position(|p| p[..3] == c).unwrap();
        assert!(place(first) < place(last));
    }
}

#[test]
fn hidden_cells_are_hatched_and_nan_is_shown() {
    let mut map = heat(3).hidden(vec![false, true, true, false, false, true, false, false, false]).unwrap();
    map.values[8] = f64::NAN;
    let svg = Figure::new("f", "").panel(map.clone()).svg().unwrap();
    let document = parse(&svg);
    let titles = titles(&document);
    assert_eq!(titles.iter().filter(|t| t.ends_with("hidden by the mask")).count(), 3);
    assert!(titles.contains(&"query 2, key 2\nweight: NaN".to_owned()), "{titles:?}");
    assert!(texts(&document).contains(&"hidden by the mask".to_owned()));
    let (_, _, pixels) = pixels(&Figure::new("f", "").panel(map).png(Theme::Light).unwrap());
    assert!(pixels.iter().filter(|p| p[..3] == [0xc4, 0x00, 0x6a]).count() > 1000, "NaN has a colour of its own");
    assert!(pixels.iter().filter(|p| p[..3] == [0xe4, 0xe6, 0xe9]).count() > 1000, "hidden cells are grey between their lines");
}

#[test]
fn a_large_map_is_a_picture_and_a_small_one_is_not() {
    let small = Figure::new("f", "").panel(heat(64)).svg().unwrap();
    assert_eq!(64 * 64, DRAWN);
    assert!(!small.contains("<image"));
    let large = Figure::new("f", "").panel(heat(512).pooled(65_536, 65_536)).svg().unwrap();
    assert!(large.contains("<image") && large.contains("data-row-span=\"65536\"") && large.len() < 400_000, "{} bytes", large.len());
    assert!(texts(&parse(&large)).iter().any(|t| t == "20,000" || t == "10,000"));
}

#[test]
fn a_grid_has_one_scale_and_one_colour_bar() {
    let (mut a, b) = (heat(4), heat(4));
    a.values.iter_mut().for_each(|v| *v *= 0.25);
    let svg = Figure::grid("g", "", vec![a, b], 2).svg().unwrap();
    assert_eq!(svg.matches("<linearGradient").count(), 1);
    let document = parse(&svg);
    // The largest value of the first map is a quarter of the scale.
    let quarter = ColourMap::Viridis.colour((0.25f64 * 253.0).round() / 253.0);
    let wanted = format!("#{:02x}{:02x}{:02x}", quarter[0], quarter[1], quarter[2]);
    assert!(document.descendants().any(|n| n.attribute("fill") == Some(&wanted)), "{wanted}");
}

#[test]
fn a_dark_picture_is_dark_and_a_file_serves_both() {
    let figure = lines();
    let corner = |theme| pixels(&figure.png(theme).unwrap()).2[0];
    assert_eq!(corner(Theme::Light), [255, 255, 255, 255]);
    assert_eq!(corner(Theme::Dark), [0x15, 0x18, 0x1d, 255]);
    assert!(figure.svg().unwrap().contains("prefers-color-scheme:dark"));
}

#[test]
fn text_is_really_drawn_without_fonts_of_the_system() {
    let empty = LinePlot::new("", Axis::linear(""), Axis::linear(""));
    let titled = LinePlot { title: "Words \u{2423}\u{23ce} \u{221a}".to_owned(), ..empty.clone() };
    let dark = |plot: LinePlot| pixels(&Figure::new("f", "").panel(plot).png(Theme::Light).unwrap()).2.iter().filter(|p| p[0] < 80).count();
    let (without, with) = (dark(empty), dark(titled));
    assert!(with > without + 400, "{without} and {with} dark pixels");
}

#[test]
fn alternative_text_is_made_from_the_data() {
    let alt = lines().alt_text();
    assert!(alt.starts_with("Lines. Entropy: entropy (nats) against head dimension d_k. scaled: 1.750 at 4 to 1.720 at 256."), "{alt}");
    let alt = Figure::new("f", "Map").panel(heat(3)).alt_text();
    assert_eq!(alt, "Map. Heat map of weight, 3 rows (query) by 3 columns (key). Largest: 1 at query 2, key 2.");
    let alt =
        Figure::new("f", "B").panel(BarPlot::new("", "head", vec!["a".to_owned()], Axis::linear("y")).bars("s", vec![0.5])).alt_text();
    assert_eq!(alt, "B. y by head. s: a 0.5000.");
    assert_eq!(lines().alt("by hand d_{k}").alt_text(), "by hand d_k");
    assert!(lines().svg().unwrap().contains("role=\"img\" aria-label=\"Lines. Entropy"));
}

#[test]
fn cells_and_tokens_that_do_not_fit_are_errors() {
    let error = HeatPlot::new("", 2, 3, vec![0.0; 5]).unwrap_err();
    assert_eq!(error, FigureError::Cells { what: "values", got: 5, rows: 2, cols: 3 });
    let error = heat(3).hidden(vec![true; 4]).unwrap_err();
    assert_eq!(error.to_string(), "a heat map of 3 x 3 cells was given 4 hidden cells");
    let error = heat(3).tokens(&[], &[]).unwrap_err();
    assert_eq!(error, FigureError::Tokens { axis: "rows", got: 0, expected: 3 });
    assert!(HeatPlot::new("", usize::MAX, 2, vec![]).is_err());
}

#[test]
fn letters_mark_the_panels_of_a_figure_but_not_the_heads_of_a_grid() {
    let plot = || LinePlot::new("t", Axis::linear("x"), Axis::linear("y"));
    let two = Figure::new("f", "").panel(plot()).panel(plot()).svg().unwrap();
    let seen = texts(&parse(&two));
    assert!(seen.contains(&"a".to_owned()) && seen.contains(&"b".to_owned()));
    let grid = Figure::grid("g", "", vec![heat(3), heat(3)], 2).svg().unwrap();
    assert!(!texts(&parse(&grid)).contains(&"a".to_owned()));
}

#[test]
fn a_reference_line_lies_under_the_numbers_of_the_bars() {
    let bars = BarPlot::new("", "mask", vec!["a".to_owned()], Axis::linear("loss")).bars("s", vec![3.53]).reference(3.81, "uniform");
    for plot in [bars.clone(), bars.lying()] {
        let svg = Figure::new("bars", "Bars").panel(plot).svg().unwrap();
        let document = parse(&svg);
        let marks: Vec<_> = document.descendants().collect();
        let line = marks.iter().rposition(|n| n.has_tag_name("line") && n.has_attribute("stroke-dasharray")).expect("a line");
        let number = marks.iter().position(|n| n.has_tag_name("text") && n.text() == Some("3.53")).expect("a number");
        assert!(line < number && marks[number].attribute("paint-order") == Some("stroke"), "drawn later, with a rim of paper: {svg}");
    }
}

fn words(text: &str) -> Vec<String> {
    text.split('|').map(str::to_owned).collect()
}

#[test]
fn lines_between_tokens_have_their_weights() {
    let weights = vec![1.0, 0.0, 0.0, 0.25, 0.75, 0.0, 0.005, 0.3, 0.7];
    let plot = LinkPlot::new(words("the| cat|</script>"), words("the| cat|</script>")).head("head 0", weights.clone()).unwrap();
    let svg = Figure::new("links", "Links").panel(plot.clone()).svg().unwrap();
    let document = parse(&svg);
    let strokes: Vec<&str> = document.descendants().filter_map(|n| n.attribute("stroke-opacity")).collect();
    // A line for each weight of a hundredth and more.
    assert_eq!(strokes, ["1", "0.25", "0.75", "0.3", "0.7"]);
    assert!(titles(&document).contains(&"head 0: \u{2423}cat looks at the\nweight: 0.2500".to_owned()), "{:?}", titles(&document));
    assert_eq!(texts(&document), ["query", "key", "the", "\u{2423}cat", "</script>", "the", "\u{2423}cat", "</script>"]);

    let two = plot.clone().head("head 1", vec![0.5; 9]).unwrap().chosen(vec![1]);
    let svg = Figure::new("links", "Links").panel(two).svg().unwrap();
    let document = parse(&svg);
    assert_eq!(document.descendants().filter(|n| n.attribute("stroke-opacity").is_some()).count(), 2 + 3, "of one query");
    assert!(texts(&document).contains(&"head 1".to_owned()), "a legend");

    let spoilt = plot.head("head 1", vec![f64::NAN; 9]).unwrap();
    let svg = Figure::new("links", "Links").panel(spoilt).svg().unwrap();
    assert_eq!(texts(&parse(&svg)).iter().filter(|t| t.ends_with(" (NaN)")).count(), 3);
    assert!(matches!(LinkPlot::new(words("a"), words("a|b")).head("", weights), Err(FigureError::Cells { .. })));
}

#[test]
fn graphs_have_a_line_per_edge_and_refuse_edges_without_ends() {
    let graph = GraphPlot::new(vec!["below".into(), "above".into()], vec!["plain".into(), "other".into()]);
    let graph = graph.node(0, "a").node(0, "b").node(1, "c");
    assert!(matches!(graph.clone().edge(0, 3, 0, 1.0), Err(FigureError::Edge { to: 3, nodes: 3, .. })));
    assert!(matches!(graph.clone().edge(0, 2, 2, 1.0), Err(FigureError::Edge { kind: 2, kinds: 2, .. })));
    let graph = graph.edge(0, 2, 0, 0.5).unwrap().edge(1, 2, 1, -2.0).unwrap();
    let figure = Figure::new("graph", "A graph").panel(graph);
    let svg = figure.svg().unwrap();
    assert!(svg.contains("<title>b to c (other): ") && svg.contains("<title>a to c (plain): 0.5000</title>"), "{svg}");
    assert!(figure.alt_text().contains("3 nodes and 2 edges") && figure.png(Theme::Light).unwrap().starts_with(b"\x89PNG"));
}
