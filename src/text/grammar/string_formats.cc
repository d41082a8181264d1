#include "text/grammar/string_formats.h"

namespace deepinfer {

namespace {

#define DI_DAY                                                                       \
  "(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))" \
  "|(02-(0[1-9]|1[0-9]|2[0-8])))"
#define DI_LEAP_YEAR "([0-9][0-9](0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define DI_DATE "([0-9]{4}-" DI_DAY "|" DI_LEAP_YEAR "-02-29)"
#define DI_CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
#define DI_ZONE "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define DI_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define DI_IPV4 "(" DI_OCTET "\\.){3}" DI_OCTET
#define DI_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define DI_H16 "[0-9a-fA-F]{1,4}"
#define DI_LS32 "(" DI_H16 ":" DI_H16 "|" DI_IPV4 ")"
#define DI_POINTER "(/([^/~]|~[01])*)*"
#define DI_PCT "%[0-9a-fA-F]{2}"
#define DI_URI_CHAR "([a-zA-Z0-9._~:@!$&'()*+,;=/-]|" DI_PCT ")"
#define DI_AUTHORITY "//([a-zA-Z0-9._~!$&'()*+,;=:@-]|" DI_PCT "|\\[[0-9a-fA-F:.]+\\])*"
#define DI_TAIL "(/" DI_URI_CHAR "*)?(\\?(" DI_URI_CHAR "|\\?)*)?(#(" DI_URI_CHAR "|\\?)*)?"
#define DI_URI                                                                          \
  "[a-zA-Z][a-zA-Z0-9+.-]*:(" DI_AUTHORITY DI_TAIL "|" DI_URI_CHAR "*(\\?(" DI_URI_CHAR \
  "|\\?)*)?(#(" DI_URI_CHAR "|\\?)*)?)"

struct StringFormat {
  std::string_view name;
  const char* regex;
};

constexpr StringFormat kFormats[] = {
    {"date", DI_DATE},
    {"time", DI_CLOCK DI_ZONE},
    {"date-time", DI_DATE "[Tt]" DI_CLOCK DI_ZONE},
    {"duration",
     "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)"
     "?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+)*@(" DI_LABEL
              "(\\." DI_LABEL ")*)"},
    {"hostname", "(" DI_LABEL ")(\\." DI_LABEL ")*"},
    {"ipv4", DI_IPV4},
    {"ip-address", DI_IPV4},
    {"ipv6", "((" DI_H16 ":){6}" DI_LS32 "|::(" DI_H16 ":){5}" DI_LS32 "|(" DI_H16 ")?::(" DI_H16
             ":){4}" DI_LS32 "|((" DI_H16 ":){0,1}" DI_H16 ")?::(" DI_H16 ":){3}" DI_LS32
             "|((" DI_H16 ":){0,2}" DI_H16 ")?::(" DI_H16 ":){2}" DI_LS32 "|((" DI_H16
             ":){0,3}" DI_H16 ")?::" DI_H16 ":" DI_LS32 "|((" DI_H16 ":){0,4}" DI_H16 ")?::" DI_LS32
             "|((" DI_H16 ":){0,5}" DI_H16 ")?::" DI_H16 "|((" DI_H16 ":){0,6}" DI_H16 ")?::)"},
    {"uri", DI_URI},
    {"iri", "[a-zA-Z][a-zA-Z0-9+.-]*:[^\\s<>\"{}|\\\\^`]*"},
    {"uri-reference", "(" DI_URI "|(" DI_AUTHORITY ")?" DI_TAIL "|" DI_URI_CHAR "*" DI_TAIL ")"},
    {"json-pointer", DI_POINTER},
    {"relative-json-pointer", "(0|[1-9][0-9]*)(#|" DI_POINTER ")"},
};

}  // namespace

const char* RegexOfFormat(std::string_view format) {
  for (const StringFormat& known : kFormats) {
    if (known.name == format) return known.regex;
  }
  return nullptr;
}

}  // namespace deepinfer
