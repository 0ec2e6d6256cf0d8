//! Tokenizers: what goes in comes out, also through a file.

use regard_nn::streaming::TextStream;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::{Error, stories};
use std::path::Path;

fn through_a_file(tokenizer: &Tokenizer) -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_json().expect("JSON")).expect("saved");
    Tokenizer::load(&path).expect("loaded")
}

#[test]
fn characters_and_bpe_lose_nothing() {
    let mut text = stories::write(30_000, 3);
    text.push_str("\n\n  naïve café, \t日本 \u{1F600}\r\n end ");
    for (kind, vocab) in [(TokenizerKind::Char, None), (TokenizerKind::Bpe(300), Some(300)), (TokenizerKind::BpeBos(300), Some(300))] {
        let tokenizer = Tokenizer::train(kind, &text).expect("trained");
        assert!(vocab.is_none_or(|v| v == tokenizer.vocab()), "{kind:?}: {}", tokenizer.vocab());
        let ids = tokenizer.encode(&text).expect("encoded");
        assert_eq!(tokenizer.decode(&ids).expect("decoded"), text);
        let again = through_a_file(&tokenizer);
        assert_eq!(again.encode(&text).expect("encoded"), ids);
        assert_eq!(again.vocab(), tokenizer.vocab());
    }
}

#[test]
fn bpe_knows_bytes_that_training_has_not_seen() {
    let tokenizer = Tokenizer::train(TokenizerKind::Bpe(280), &stories::write(5_000, 3)).expect("trained");
    let strange = "Ωμέγα \u{0}\u{7f} 漢字";
    assert_eq!(tokenizer.decode(&tokenizer.encode(strange).expect("encoded")).expect("decoded"), strange);
}

#[test]
fn a_token_that_begins_texts_is_the_last_of_the_vocabulary() {
    let text = stories::write(5_000, 3);
    let tokenizer = Tokenizer::train(TokenizerKind::BpeBos(280), &text).expect("trained");
    assert_eq!((tokenizer.bos(), tokenizer.vocab()), (Some(279), 280));
    assert_eq!(through_a_file(&tokenizer).bos(), Some(279));
    assert!(!tokenizer.encode(&text).expect("encoded").contains(&279), "no text has it");
    for kind in [TokenizerKind::Char, TokenizerKind::Bpe(280), TokenizerKind::WordPiece(80)] {
        assert_eq!(Tokenizer::train(kind, &text).expect("trained").bos(), None);
    }
    assert!(matches!(Tokenizer::train(TokenizerKind::BpeBos(256), "abc"), Err(Error::Config { .. })));
}

#[test]
fn word_piece_keeps_the_words() {
    let text = stories::write(30_000, 3);
    let tokenizer = Tokenizer::train(TokenizerKind::WordPiece(200), &text).expect("trained");
    let line = "Anna and Ben went to the market.";
    let words = tokenizer.decode(&tokenizer.encode(line).expect("encoded")).expect("decoded");
    assert_eq!(words, "anna and ben went to the market.");
    assert_eq!(through_a_file(&tokenizer).encode(line).expect("encoded"), tokenizer.encode(line).expect("encoded"));
}

#[test]
fn training_twice_gives_the_same_tokenizer() {
    let text = stories::write(30_000, 3);
    for kind in [TokenizerKind::Bpe(400), TokenizerKind::WordPiece(200)] {
        let ids = || Tokenizer::train(kind, &text).expect("trained").encode(&text).expect("encoded");
        assert_eq!(ids(), ids());
    }
}

#[test]
fn bad_input_is_refused_with_one_clear_line() {
    assert!(matches!(Tokenizer::train(TokenizerKind::Char, ""), Err(Error::ShortText { .. })));
    assert!(matches!(Tokenizer::train(TokenizerKind::Bpe(100), "abc"), Err(Error::Config { .. })));
    let tokenizer = Tokenizer::train(TokenizerKind::Char, "abc").expect("trained");
    assert_eq!(tokenizer.encode("abd").expect_err("not seen").to_string(), "the character 'd' is not in the tokenizer's vocabulary");
    assert!(matches!(tokenizer.decode(&[0, 3]), Err(Error::Token { token: 3, vocab: 3 })));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    assert!(matches!(Tokenizer::load(&path), Err(Error::Files(_))));
    std::fs::write(&path, "{\"model\": 3}").expect("written");
    assert!(matches!(Tokenizer::load(&path), Err(Error::Tokenizer { .. })));
}

/// The text piece by piece, as it is shown while it is written.
fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = TextStream::new(|ids: &[u32]| tokenizer.decode(ids));
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).expect("a token")).collect();
    pieces.push(stream.finish().expect("a rest"));
    pieces
}

#[test]
fn streamed_text_is_the_whole_text_and_no_character_is_torn() {
    let text = "The cat's café: 日本, \u{1F600}! The cat sat on the mat, the dog did not.\n";
    for kind in [TokenizerKind::Char, TokenizerKind::Bpe(257), TokenizerKind::Bpe(300), TokenizerKind::WordPiece(80)] {
        let tokenizer = Tokenizer::train(kind, text).expect("trained");
        let ids = tokenizer.encode(text).expect("encoded");
        let pieces = streamed(&tokenizer, &ids);
        assert_eq!(pieces.concat(), tokenizer.decode(&ids).expect("decoded"), "{kind:?}");
        assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{kind:?}: {pieces:?}");
        assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() > 10, "it comes in pieces: {pieces:?}");
    }
}

#[test]
fn bytes_that_never_become_a_character_are_not_held_back_for_ever() {
    let tokenizer = Tokenizer::train(TokenizerKind::Bpe(256), "日本 a").expect("trained");
    let ids = tokenizer.encode("日").expect("encoded");
    // A first byte over and over; a middle byte over and over; both in turn.
    for pattern in [&ids[..1], &ids[1..2], &ids[..2]] {
        let broken: Vec<u32> = pattern.iter().copied().cycle().take(3000).collect();
        let whole = tokenizer.decode(&broken).expect("decoded");
        let mut stream = TextStream::new(|ids: &[u32]| tokenizer.decode(ids));
        let mut shown = String::new();
        for (i, &id) in broken.iter().enumerate() {
            shown += &stream.push(id).expect("a token");
            assert!(shown.chars().count() * pattern.len() + 3 > i, "{} characters after {i} tokens", shown.chars().count());
        }
        shown += &stream.finish().expect("a rest");
        assert_eq!(shown, whole);
    }
}

#[test]
fn bytes_that_are_no_character_are_streamed_as_the_whole_text_has_them() {
    let tokenizer = Tokenizer::train(TokenizerKind::Bpe(256), "日本 a").expect("trained");
    let ids = tokenizer.encode("日本a").expect("encoded");
    assert_eq!(ids.len(), 7);
    // The second character lacks its last byte, its first byte, or the end of the text.
    for broken in [[&ids[..5], &ids[6..]].concat(), [&ids[..3], &ids[4..]].concat(), ids[..5].to_vec()] {
        let whole = streamed(&tokenizer, &broken).concat();
        assert_eq!(whole, tokenizer.decode(&broken).expect("decoded"));
        assert!(whole.contains('\u{FFFD}'));
    }
}

/// What `python/tests/test_tokenizers.py` reads with the library's Python package. `REGARD_WRITE_GOLDEN=1 cargo test` writes it anew.
#[test]
fn golden_tokenizers_for_python_are_current() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/golden/tokenizers");
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = stories::write(2_000, 3);
    text.push_str("\n\n  naïve café, \t日本 \u{1F600}\r\n end ");
    let mut tokens = serde_json::Map::from_iter([("text".to_owned(), text.as_str().into())]);
    for (name, kind) in [("char", TokenizerKind::Char), ("bpe", TokenizerKind::Bpe(290)), ("wordpiece", TokenizerKind::WordPiece(110))] {
        let tokenizer = Tokenizer::train(kind, &text).expect("trained");
        std::fs::write(folder.path().join(format!("{name}.json")), tokenizer.to_json().expect("JSON")).expect("saved");
        tokens.insert(name.to_owned(), tokenizer.encode(&text).expect("encoded").into());
    }
    std::fs::write(folder.path().join("tokens.json"), format!("{}\n", serde_json::Value::from(tokens))).expect("written");
    if std::env::var_os("REGARD_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(&golden).expect("made");
    }
    for name in ["tokens.json", "char.json", "bpe.json", "wordpiece.json"] {
        let (made, kept) = (folder.path().join(name), golden.join(name));
        if std::env::var_os("REGARD_WRITE_GOLDEN").is_some() {
            std::fs::copy(&made, &kept).expect("copied");
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(read(&made) == read(&kept), "{name} is not what our tokenizers make today");
    }
}
