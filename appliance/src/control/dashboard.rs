//! The dashboard's page: the files of `appliance/dashboard`, unchanged, embedded in the program.
//!
//! They contain no data of this appliance, so they are accessible without a token: the page asks
//! for it. Its policy lets the page load from and connect to this appliance only (Content Security
//! Policy Level 3; Trusted Types).

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::responses::refusal;

/// The path prefix of all files except the page.
pub(super) const PREFIX: &str = "/dashboard/";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal $media_type:ident)*) => {
        [$(($name, $media_type, include_str!(concat!("../../dashboard/", $name)))),*]
    };
}

/// Name, media type and content.
const FILES: [(&str, &str, &str); 12] = files! {
    "index.html" HTML
    "icon.svg" SVG
    "style.css" STYLE
    "main.js" SCRIPT
    "api.js" SCRIPT
    "charts.js" SCRIPT
    "dom.js" SCRIPT
    "format.js" SCRIPT
    "history.js" SCRIPT
    "panels.js" SCRIPT
    "vendor/uPlot.esm.js" SCRIPT
    "vendor/uPlot.min.css" STYLE
};

pub(super) async fn page() -> Response {
    asset("index.html")
}

pub(super) async fn file(Path(name): Path<String>) -> Response {
    asset(&name)
}

fn asset(name: &str) -> Response {
    let mut files = FILES.iter();
    let Some((_, media_type, content)) = files.find(|(known, _, _)| *known == name) else {
        let text = "the dashboard has no such file: its page is at /";
        return refusal(StatusCode::NOT_FOUND, text.to_owned());
    };
    let headers = [
        (header::CONTENT_TYPE, *media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program may have different files.
        (header::CACHE_CONTROL, "no-store"),
    ];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    (headers, *content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files in the folder that are not part of the page.
    const BESIDE: [&str; 3] = ["README.md", "vendor/LICENSE.uPlot", "vendor/README.md"];

    #[test]
    fn all_dashboard_files_are_embedded() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboard");
        let mut found = Vec::new();
        for folder in ["", "vendor/"] {
            for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
                let entry = entry.expect("readable");
                if entry.file_type().expect("known").is_file() {
                    found.push(format!("{folder}{}", entry.file_name().display()));
                }
            }
        }
        found.retain(|name| !BESIDE.contains(&name.as_str()));
        found.sort();
        let mut known = FILES.map(|(name, _, _)| name.to_owned());
        known.sort();
        assert_eq!(found, known);
    }

    #[test]
    fn dashboard_obeys_its_content_security_policy() {
        let (_, _, page) = FILES[0];
        for forbidden in ["style=", "onclick", "javascript:", "http://", "https://"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        // Every script is loaded from a file.
        assert_eq!(
            page.matches("<script").count(),
            page.matches("></script>").count()
        );
    }
}
