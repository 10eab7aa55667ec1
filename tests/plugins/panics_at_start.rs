//! A plugin whose constructor panics.

pensieve_sdk::export!({
    // The panic is what is wanted; its report would only look like a failure of the test.
    std::panic::set_hook(Box::new(|_| ()));
    panic!("no plugin today")
});
