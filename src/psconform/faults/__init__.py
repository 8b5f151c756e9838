"""What psconform breaks: values that say what and when, and the control channel that says where training is."""
