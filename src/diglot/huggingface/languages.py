"""Languages of M2M100 and mBART-50 in the order of their ids, and the tokens that name languages."""

import re

# The texts of a language's token: of OPUS-MT, of M2M100, and of NLLB and mBART-50.
LANGUAGE = re.compile(r">>(\w[\w@+-]{0,49})<<|__([a-z]\w{0,49})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")

# The folders of these models do not always have their languages.
_M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
    "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
    "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
WMT21 = ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")
_MBART50 = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP "
    "nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN "
    "mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
M2M100, MBART50 = tuple(_M2M100.split()), tuple(_MBART50.split())
