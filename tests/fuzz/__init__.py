"""What comes from outside, made up: whatever it is, it ends in an answer or in an error of ours, soon and in bounds."""
