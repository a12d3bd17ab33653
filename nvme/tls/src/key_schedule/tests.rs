use super::*;

#[test]
fn secrets_have_the_length_of_the_hash() {
    for suite in Suite::ALL {
        let right = suite.hash().len();
        for len in [0, right - 1, right + 1, 64] {
            let error = TrafficSecret::new(suite, &vec![7; len]).expect_err("refused");
            let message = error.to_string();
            assert!(message.contains(&format!("{right} bytes")), "{message}");
        }
        assert!(TrafficSecret::new(suite, &vec![7; right]).is_ok());
    }
}

#[test]
fn secrets_are_not_printed() {
    let secret = TrafficSecret::new(Suite::Aes128GcmSha256, &[0xab; 32]).expect("valid");
    assert!(!format!("{secret:?}").contains("171"));
    assert_eq!(
        format!("{:?}", RecordKeys::new(secret)),
        "RecordKeys(hidden)"
    );
}
