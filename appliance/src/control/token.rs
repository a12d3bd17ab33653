//! The tokens that HTTP requests must contain.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::limits::TOKEN_BYTES;

/// A token. Never printed.
#[derive(Clone)]
pub(super) struct Token(Zeroizing<Vec<u8>>);

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
        let most = TOKEN_BYTES.end() + 3;
        let mut bytes = Zeroizing::new(Vec::with_capacity(most));
        File::open(path)?
            .take(most as u64)
            .read_to_end(&mut bytes)?;
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
        Ok(Self(Zeroizing::new(token.to_vec())))
    }

    /// Whether `given` is this token. The time reveals only lengths.
    fn is(&self, given: &[u8]) -> bool {
        given.ct_eq(&self.0).into()
    }
}

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Read everything except reservation keys and the host identifiers of registrants.
    Read,
    /// Read everything, and change the appliance.
    Operate,
}

/// The configured tokens, by role.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    pub(super) operate: Option<Token>,
    pub(super) read: Option<Token>,
}

impl Tokens {
    /// Whether requests need a token.
    pub(super) fn are_needed(&self) -> bool {
        self.operate.is_some() || self.read.is_some()
    }

    /// Whether both roles have the same token.
    pub(super) fn are_equal(&self) -> bool {
        let pair = self.operate.as_ref().zip(self.read.as_ref());
        pair.is_some_and(|(operate, read)| operate.is(&read.0))
    }

    /// The role of the token in an `Authorization` header (RFC 6750 §2.1).
    pub(super) fn role(&self, header: Option<&[u8]>) -> Option<Role> {
        let (scheme, given) = header?.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        let is = |token: &Option<Token>| token.as_ref().is_some_and(|token| token.is(given));
        // Compares both, so that the time does not reveal the role.
        match (is(&self.operate), is(&self.read)) {
            (true, _) => Some(Role::Operate),
            (false, true) => Some(Role::Read),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"0123456789abcdef-secret";

    #[test]
    fn only_the_exact_token_is_accepted() {
        let token = Token::new(TEXT).expect("long enough");
        let tokens = Tokens {
            operate: Some(token.clone()),
            read: None,
        };
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
            assert_eq!(tokens.role(wrong), None, "{wrong:?}");
        }
        for right in [
            "Bearer 0123456789abcdef-secret",
            "bearer 0123456789abcdef-secret",
        ] {
            assert_eq!(tokens.role(Some(right.as_bytes())), Some(Role::Operate));
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn each_token_has_its_role() {
        let token = |text: &[u8]| Some(Token::new(text).expect("long enough"));
        let mut tokens = Tokens::default();
        assert!(!tokens.are_needed());
        assert_eq!(tokens.role(Some(b"Bearer ")), None);
        tokens.read = token(b"read-read-read-read");
        assert!(tokens.are_needed() && !tokens.are_equal());
        assert_eq!(
            tokens.role(Some(b"Bearer read-read-read-read")),
            Some(Role::Read)
        );
        tokens.operate = token(TEXT);
        assert!(!tokens.are_equal());
        assert_eq!(
            tokens.role(Some(b"Bearer read-read-read-read")),
            Some(Role::Read)
        );
        assert_eq!(
            tokens.role(Some(b"Bearer 0123456789abcdef-secret")),
            Some(Role::Operate)
        );
        tokens.read = token(TEXT);
        assert!(tokens.are_equal());
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
