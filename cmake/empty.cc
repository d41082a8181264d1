// Lets a folder of headers be a library until its first source file exists.
