//! The token that HTTP requests must contain.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use subtle::ConstantTimeEq as _;

use super::limits::TOKEN_BYTES;

/// A token. Never printed.
#[derive(Clone)]
pub(super) struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why a file does not contain a valid token.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("it cannot be read")]
    Read(#[from] std::io::Error),
    #[error("its token has {0} bytes, not {least} to {most}",
        least = TOKEN_BYTES.start(), most = TOKEN_BYTES.end())]
    Length(usize),
    #[error("its token has a character that is not printable ASCII, or a blank")]
    Character,
}

impl Token {
    /// Reads the token in the file at `path`, which has one line.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not a token.
    pub(super) fn load(path: &Path) -> Result<Self, TokenError> {
        let mut bytes = Vec::new();
        let most = *TOKEN_BYTES.end() as u64 + 3;
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Self::new(&bytes)
    }

    pub(super) fn new(bytes: &[u8]) -> Result<Self, TokenError> {
        let token = bytes.trim_ascii_end();
        if !TOKEN_BYTES.contains(&token.len()) {
            return Err(TokenError::Length(token.len()));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Character);
        }
        Ok(Self(token.to_vec()))
    }

    /// Whether an `Authorization` header contains it (RFC 6750 §2.1). The time reveals only lengths.
    pub(super) fn is_in(&self, header: Option<&[u8]>) -> bool {
        let Some((scheme, given)) = header.and_then(|header| header.split_at_checked(7)) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"0123456789abcdef-secret";

    #[test]
    fn only_the_exact_token_is_accepted() {
        let token = Token::new(TEXT).expect("long enough");
        for wrong in [
            None,
            Some(&b""[..]),
            Some(b"Bearer"),
            Some(b"Bearer "),
            Some(b"Bearer 0123456789abcdef-secre"),
            Some(b"Bearer 0123456789abcdef-secret "),
            Some(b"Bearer 0123456789abcdef-Secret"),
            Some(b"Basic 0123456789abcdef-secret"),
            Some(b"0123456789abcdef-secret"),
        ] {
            assert!(!token.is_in(wrong), "{wrong:?}");
        }
        assert!(token.is_in(Some(b"Bearer 0123456789abcdef-secret")));
        assert!(token.is_in(Some(b"bearer 0123456789abcdef-secret")));
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn invalid_tokens_are_refused() {
        for wrong in [
            &b""[..],
            b"\n",
            b"short\n",
            b"0123456789 abcdef",
            b"0123456789\xffabcdef",
        ] {
            assert!(Token::new(wrong).is_err(), "{wrong:?}");
        }
        let longest = vec![b'x'; *TOKEN_BYTES.end()];
        assert!(Token::new(&longest).is_ok());
        assert!(Token::new(&[&longest[..], b"x"].concat()).is_err());
        assert!(Token::new(&[TEXT, b"\r\n"].concat()).is_ok());
        assert!(Token::load(Path::new("/nowhere/token")).is_err());
    }
}
