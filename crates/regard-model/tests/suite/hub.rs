//! Downloads: never without being told, and from where one is told to.

use regard_model::hub::Hub;
use std::path::Path;

#[test]
fn a_path_is_not_downloaded() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = Hub { endpoint: Some("http://127.0.0.1:9".to_owned()), cache: cache.path().to_owned() };
    for name in ["model.gguf", "a/b/c", "../x"] {
        let error = hub.download(Path::new(name), |_| panic!("nothing is asked for")).expect_err(name).to_string();
        assert!(error.contains("only a name like org/model"), "{error}");
    }
    assert!(cache.path().read_dir().expect("a folder").next().is_none(), "nothing is written");
}

#[cfg(not(feature = "hub"))]
#[test]
fn without_the_feature_the_way_out_is_said() {
    let cache = tempfile::tempdir().expect("a folder");
    let error = Hub { endpoint: None, cache: cache.path().to_owned() }
        .download(Path::new("org/model"), |_| {})
        .expect_err("no downloads")
        .to_string();
    assert!(error.contains("hf download org/model") && error.contains("--features hub") && !error.contains('\n'), "{error}");
}

#[cfg(feature = "hub")]
mod with_the_feature {
    use super::*;
    use crate::golden::folder;
    use regard_model::{Edits, Model, Sources};
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    /// A hub with one model, on this machine: the list of files, and each of them in ranges.
    fn serve(files: Vec<(String, Vec<u8>)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut lines = BufReader::new(stream.try_clone().expect("the same")).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
                let path = request.split(' ').nth(1).unwrap_or("").to_owned();
                let found = files.iter().find(|(name, _)| path == format!("/org/small/resolve/main/{name}"));
                let (head, body) = if path.starts_with("/api/models/org/small") {
                    let names: Vec<_> = files.iter().map(|(name, _)| serde_json::json!({ "rfilename": name })).collect();
                    let body = serde_json::json!({ "siblings": names, "sha": "abc" }).to_string().into_bytes();
                    ("200 OK\r\n".to_owned(), body)
                } else if let Some((name, bytes)) = found {
                    let first = headers.iter().any(|line| line == "range: bytes=0-0");
                    let body = if first { bytes[..1].to_vec() } else { bytes.clone() };
                    let range = format!("Content-Range: bytes 0-{}/{}\r\n", body.len() - 1, bytes.len());
                    (format!("206 Partial Content\r\nETag: \"{}\"\r\nX-Repo-Commit: abc\r\n{range}", name.replace(['/', '.'], "_")), body)
                } else {
                    ("404 Not Found\r\n".to_owned(), b"no".to_vec())
                };
                let _ = write!(stream, "HTTP/1.1 {head}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(&body);
            }
        });
        address
    }

    #[test]
    fn what_is_downloaded_is_the_model_and_is_found_again_without_a_hub() {
        let files = folder("gpt2").read_dir().expect("golden files").map(|entry| entry.expect("an entry").path());
        let files =
            files.map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), std::fs::read(&path).expect("a file")));
        let cache = tempfile::tempdir().expect("a folder");
        let hub = Hub { endpoint: Some(serve(files.collect())), cache: cache.path().to_owned() };
        assert!(hub.cached(Path::new("org/small")).is_none(), "reading the cache needs no network");
        let mut said = Vec::new();
        let snapshot = hub.download(Path::new("org/small"), |file| said.push(file.to_owned())).expect("a model");
        assert_eq!(said, ["config.json", "model.safetensors"]);
        assert_eq!(Hub { endpoint: None, ..hub.clone() }.cached(Path::new("org/small")), Some(snapshot.clone()));
        let logits = |path: &Path| {
            let model = Model::load(path).expect("a model");
            model.run(&[5, 6, 7], &Edits::default(), &Sources::default()).expect("a run").logits().expect("logits")
        };
        assert_eq!(logits(&snapshot), logits(&folder("gpt2")));
        let error = hub.download(Path::new("org/other"), |_| {}).expect_err("there is no such model").to_string();
        assert!(error.contains("list of files") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn no_hub_is_an_error() {
        let cache = tempfile::tempdir().expect("a folder");
        let hub = Hub { endpoint: Some("http://127.0.0.1:9".to_owned()), cache: cache.path().to_owned() };
        let error = hub.download(Path::new("org/model"), |_| {}).expect_err("no answer").to_string();
        assert!(error.contains("could not be downloaded") && !error.contains('\n'), "{error}");
    }
}
